"""All tables of the metadata image. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from replication.metadata.cluster_tables import BROKERS, CONTROLLERS, FEATURES, PRODUCER_IDS
from replication.metadata.quota_entities import entity_of
from replication.metadata.tables import Changes, Replay, records_table
from replication.metadata.topic_tables import CONFIGS, TOPICS
from wire.messages import metadata_records as m

CLIENT_QUOTAS = records_table(
    "client_quotas",
    lambda record: (entity_of(record.entity), record.key),
    m.ClientQuotaRecord,
    is_removal=lambda record: record.remove,
)
ACLS = records_table(
    "acls", lambda record: record.id, m.AccessControlEntryRecord, m.RemoveAccessControlEntryRecord
)
SCRAM_CREDENTIALS = records_table(
    "scram_credentials",
    lambda record: (record.name, record.mechanism),
    m.UserScramCredentialRecord,
    m.RemoveUserScramCredentialRecord,
)
DELEGATION_TOKENS = records_table(
    "delegation_tokens",
    lambda record: record.token_id,
    m.DelegationTokenRecord,
    m.RemoveDelegationTokenRecord,
)

TABLES = (
    FEATURES,
    BROKERS,
    CONTROLLERS,
    TOPICS,
    CONFIGS,
    CLIENT_QUOTAS,
    PRODUCER_IDS,
    ACLS,
    SCRAM_CREDENTIALS,
    DELEGATION_TOKENS,
)
"""In the order of a snapshot, which is Kafka's; the features first, since they decide how the
others are read. Configs are compared after topics."""


def _nothing(_changes: Changes, _record: object) -> None:
    """NoOpRecord and ZkMigrationStateRecord carry no state Kafka 4 keeps."""


REPLAYS: Mapping[type, Replay] = {
    m.NoOpRecord: _nothing,
    m.ZkMigrationStateRecord: _nothing,
    **{record: replay for table in TABLES for record, replay in table.replays.items()},
}
