-- Three roles for one database: troupe_owner owns the tables and upgrades them (`troupe db upgrade`),
-- troupe_service reads and writes rows: it is the one in TROUPE_DATABASE_URL of the processes, and
-- troupe_reader only reads, for reports and backups of your own.
-- Run it as a superuser, connected to an empty database; give the roles a password afterwards:
--   psql -d troupe -f deploy/postgres-roles.sql && psql -d troupe -c '\password troupe_service'
CREATE ROLE troupe_owner LOGIN;
CREATE ROLE troupe_service LOGIN;
CREATE ROLE troupe_reader LOGIN;
GRANT CREATE, USAGE ON SCHEMA public TO troupe_owner;
GRANT USAGE ON SCHEMA public TO troupe_service, troupe_reader;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
-- For what every later upgrade creates, too.
ALTER DEFAULT PRIVILEGES FOR ROLE troupe_owner IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO troupe_service;
ALTER DEFAULT PRIVILEGES FOR ROLE troupe_owner IN SCHEMA public
    GRANT USAGE, SELECT ON SEQUENCES TO troupe_service;
ALTER DEFAULT PRIVILEGES FOR ROLE troupe_owner IN SCHEMA public
    GRANT SELECT ON TABLES TO troupe_reader;
