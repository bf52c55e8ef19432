"""The stories in this folder are what the quorum does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.story import Story

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("transcript", STORIES, ids=lambda path: path.stem)
def test_the_story_is_told_as_it_is_written(transcript: Path, tmp_path: Path) -> None:
    written = transcript.read_text(encoding="utf-8")
    told = Story(tmp_path).tell(written)
    if os.environ.get("REWRITE"):
        transcript.write_text(told, encoding="utf-8")
    else:
        assert told == written
