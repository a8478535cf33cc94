-- What wakes a relay comes along to a standby, and never keeps a business transaction from its commit.
--
-- The sequence was unlogged: a standby that was promoted before its next restartpoint had none that could be read, so
-- that nobody could write to the outbox ("bad magic number in sequence"). It is made anew rather than altered, which
-- reads it. Roles keep their rights on it.
DO $$
DECLARE
    place text;
    owner text;
    given record;
BEGIN
    SELECT relnamespace::regnamespace::text, quote_ident(pg_get_userbyid(relowner)) INTO place, owner
    FROM pg_class WHERE oid = 'outbox_wakeup'::regclass;
    EXECUTE format('CREATE SEQUENCE %s.outbox_wakeup_logged', place);
    FOR given IN
        SELECT privilege_type AS what, is_grantable,
               CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS whom
        FROM pg_class CROSS JOIN aclexplode(relacl) WHERE oid = 'outbox_wakeup'::regclass
    LOOP
        EXECUTE format('GRANT %s ON SEQUENCE %s.outbox_wakeup_logged TO %s%s', given.what, place, given.whom,
                       CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    EXECUTE format('ALTER SEQUENCE %s.outbox_wakeup_logged OWNER TO %s', place, owner);
    DROP SEQUENCE outbox_wakeup;
    EXECUTE format('ALTER SEQUENCE %s.outbox_wakeup_logged RENAME TO outbox_wakeup', place);
END
$$;

-- Wake a relay that sleeps. A notification takes a lock on the whole database while its transaction commits: only the
-- first of those who insert while a relay sleeps sends one. What goes wrong here costs the messages a second, since
-- relays look by themselves, too.
CREATE FUNCTION outbox_wake() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF nextval('outbox_wakeup') = 1 THEN
        PERFORM pg_notify('outbox', '');
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'outbox: no relay was woken: %', SQLERRM
        USING HINT = 'The messages are there, and relays find them a little later. Mend what it says.';
END
$$;
