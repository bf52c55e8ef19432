"""`barnabas pipeline archive --compact`: many small files become few, and no reader sees it half
done. Each format has its own means (`table`).
"""

from __future__ import annotations

from pipeline.archive.opening import open_table
from pipeline.archive.table import CompactionTotals
from pipeline.progress import human_bytes, many
from pipeline.spark.session import Job


def run_compaction(job: Job, directory: str, grace_ms: int) -> CompactionTotals:
    """Compact and clean up one archive. Raises PipelineError."""
    return open_table(job.spark, directory).table.compact(grace_ms, job.progress.show)


def summary(totals: CompactionTotals) -> str:
    lines = []
    if totals.files_before:
        rows = "" if totals.rows is None else f"{many(totals.rows, 'row')}, "
        lines.append(
            f"compacted {many(totals.files_before, 'file')} into {totals.files_after}"
            f" ({rows}{human_bytes(totals.bytes_after)})"
        )
    else:
        lines.append("nothing to compact")
    if totals.waiting:
        lines.append(
            f"{totals.waiting} files of the latest batches wait until Spark's log has its next"
            " .compact file (every tenth batch)"
        )
    if totals.removed:
        lines.append(f"removed {many(totals.removed, 'file')} that no reader can see any more")
    return "\n".join(lines)
