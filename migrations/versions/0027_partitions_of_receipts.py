"""PostgreSQL's receipts are partitioned by time; the service makes the partitions of the weeks

The rows stay where they are: their table becomes the default partition.
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_receipt_conversation": "(conversation, id)",
    "ix_receipt_person": "(person, at)",
    "ix_receipt_content": "(at) WHERE length(content) > 0",
}
# The roles that could use the table can use it under its name.
_GRANT_AGAIN = """
DO $$
DECLARE
    owner name;
    one record;
BEGIN
    FOR one IN
        SELECT relowner, grantee, privilege_type, is_grantable
        FROM pg_class LEFT JOIN LATERAL aclexplode(relacl) ON true
        WHERE oid = 'receipt_default'::regclass
    LOOP
        owner := pg_get_userbyid(one.relowner);
        CONTINUE WHEN one.grantee IS NULL OR one.grantee = one.relowner;
        EXECUTE format(
            'GRANT %s ON receipt TO %s %s',
            one.privilege_type,
            CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE one.grantee::regrole::text END,
            CASE WHEN one.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
    EXECUTE format('ALTER TABLE receipt OWNER TO %I', owner);
END
$$
"""


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        return
    op.execute("ALTER TABLE receipt RENAME TO receipt_default")
    for index in ("pk_receipt", *_INDEXES):
        op.execute(f"ALTER INDEX {index} RENAME TO {index}_default")
    op.execute(
        "CREATE TABLE receipt (LIKE receipt_default INCLUDING DEFAULTS INCLUDING STORAGE) "
        "PARTITION BY RANGE (at)"
    )
    op.execute(_GRANT_AGAIN)
    op.execute("ALTER SEQUENCE receipt_id_seq OWNED BY receipt.id")
    for index, columns in _INDEXES.items():
        op.execute(f"CREATE INDEX {index} ON receipt {columns}")
    op.execute("ALTER TABLE receipt ATTACH PARTITION receipt_default DEFAULT")


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        return
    op.execute("ALTER TABLE receipt RENAME TO receipts_by_time")
    op.execute(
        "CREATE TABLE receipt (LIKE receipts_by_time INCLUDING DEFAULTS INCLUDING STORAGE) "
        "WITH (toast_tuple_target = 8160)"
    )
    op.execute("INSERT INTO receipt SELECT * FROM receipts_by_time")
    op.execute("ALTER SEQUENCE receipt_id_seq OWNED BY receipt.id")
    op.execute("DROP TABLE receipts_by_time")
    op.execute("ALTER TABLE receipt ADD CONSTRAINT pk_receipt PRIMARY KEY (id)")
    for index, columns in _INDEXES.items():
        op.execute(f"CREATE INDEX {index} ON receipt {columns}")
