"""Functions in PostgreSQL: each change and each page of a listing is one round trip.

They say in PL/pgSQL what `cumulus.index.objects`, `uploads`, `sums`, `ledger` and `listing` say in Python for
SQLite; one contract suite runs on both. Whoever changes rows of a bucket holds the lock of the bucket's row
in `ledger` until the commit, taken in order of names; whoever reserves room holds the rows in `quotas` of
what is to be charged, in order. Each statement sees what was committed before it (READ COMMITTED).
"""

from __future__ import annotations

from typing import Final

_INTO_OBJECTS: Final = """
    INSERT INTO objects (bucket, key, version, stamp, name, token, size, etag, modified_ns, owner, checksum,
                         checksum_type)
    VALUES ({0}.bucket, {0}.key, {0}.version, {0}.stamp, {0}.name, {0}.token, {0}.size, {0}.etag,
            {0}.modified_ns, {0}.owner, {0}.checksum, {0}.checksum_type)
    ON CONFLICT (bucket, key) DO UPDATE SET version = excluded.version, stamp = excluded.stamp,
        name = excluded.name, token = excluded.token, size = excluded.size, etag = excluded.etag,
        modified_ns = excluded.modified_ns, owner = excluded.owner, checksum = excluded.checksum,
        checksum_type = excluded.checksum_type;
"""

# Take in what was published: `cumulus.index.objects.put`. Says what the ledger gets.
_PUT: Final = f"""
CREATE OR REPLACE FUNCTION cumulus_put(v versions, keep boolean, OUT bytes bigint, OUT objects bigint)
LANGUAGE plpgsql AS $$
DECLARE
    current objects; newest versions; same versions;
    has_current boolean; has_newest boolean; gone bigint; former bigint;
BEGIN
    bytes := 0;
    objects := 0;
    SELECT max(r.stamp) INTO gone FROM removed r
        WHERE r.bucket = v.bucket AND r.key = v.key AND r.version IN (v.version, '');
    IF gone >= v.stamp THEN
        RETURN;
    END IF;
    SELECT * INTO current FROM objects o WHERE o.bucket = v.bucket AND o.key = v.key;
    has_current := FOUND;
    SELECT * INTO newest FROM versions o WHERE o.bucket = v.bucket AND o.key = v.key
        ORDER BY o.stamp DESC LIMIT 1;
    has_newest := FOUND;
    IF has_current AND current.version = v.version THEN
        IF current.stamp > v.stamp THEN
            RETURN;
        END IF;
        bytes := -current.size;
        IF NOT has_newest AND NOT v.marker THEN  -- what happens most: replaced in place
            bytes := bytes + v.size;
            {_INTO_OBJECTS.format("v")}
            RETURN;
        END IF;
        objects := -1;
        DELETE FROM objects o WHERE o.bucket = v.bucket AND o.key = v.key;
        has_current := false;
    ELSIF has_newest THEN
        SELECT * INTO same FROM versions o
            WHERE o.bucket = v.bucket AND o.key = v.key AND o.version = v.version;
        IF FOUND THEN
            IF same.stamp > v.stamp THEN
                RETURN;
            END IF;
            DELETE FROM versions o WHERE o.bucket = v.bucket AND o.key = v.key AND o.version = v.version;
            IF NOT same.marker THEN
                bytes := -same.size;
                objects := -1;
            END IF;
            SELECT * INTO newest FROM versions o WHERE o.bucket = v.bucket AND o.key = v.key
                ORDER BY o.stamp DESC LIMIT 1;
            has_newest := FOUND;
        END IF;
    END IF;
    IF has_current THEN
        former := current.stamp;
    ELSIF has_newest THEN
        former := newest.stamp;
    END IF;
    IF former > v.stamp THEN
        INSERT INTO versions SELECT v.*;
    ELSE
        IF has_current THEN
            DELETE FROM objects o WHERE o.bucket = v.bucket AND o.key = v.key;
            IF keep THEN
                INSERT INTO versions SELECT current.*, false;
            ELSE
                bytes := bytes - current.size;
                objects := objects - 1;
            END IF;
        ELSIF has_newest AND NOT keep THEN
            DELETE FROM versions o
                WHERE o.bucket = v.bucket AND o.key = v.key AND o.version = newest.version;
            IF NOT newest.marker THEN
                bytes := bytes - newest.size;
                objects := objects - 1;
            END IF;
        END IF;
        IF v.marker THEN
            INSERT INTO versions SELECT v.*;
        ELSE
            {_INTO_OBJECTS.format("v")}
        END IF;
    END IF;
    IF NOT v.marker THEN
        bytes := bytes + v.size;
        objects := objects + 1;
    END IF;
END $$
"""

# Take in that a version went: `cumulus.index.objects.remove`. `gone` NULL is the current one.
_REMOVE: Final = f"""
CREATE OR REPLACE FUNCTION cumulus_remove(
    in_bucket text, in_key bytea, gone text, at bigint, now_ns bigint, OUT bytes bigint, OUT objects bigint)
LANGUAGE plpgsql AS $$
DECLARE
    top versions; found_one versions; is_current boolean; has_top boolean; has_found boolean;
BEGIN
    bytes := 0;
    objects := 0;
    SELECT o.*, false INTO top FROM objects o WHERE o.bucket = in_bucket AND o.key = in_key;
    is_current := FOUND;
    IF NOT is_current THEN
        SELECT * INTO top FROM versions o WHERE o.bucket = in_bucket AND o.key = in_key
            ORDER BY o.stamp DESC LIMIT 1;
    END IF;
    has_top := FOUND;
    IF gone IS NULL AND (NOT has_top OR top.stamp > at) THEN
        SELECT * INTO found_one FROM versions o  -- what was current at that time
            WHERE o.bucket = in_bucket AND o.key = in_key AND o.stamp <= at ORDER BY o.stamp DESC LIMIT 1;
        has_found := FOUND;
    ELSIF gone IS NULL OR (has_top AND top.version = gone) THEN
        found_one := top;
        has_found := has_top;
    ELSE
        SELECT * INTO found_one FROM versions o
            WHERE o.bucket = in_bucket AND o.key = in_key AND o.version = gone;
        has_found := FOUND;
    END IF;
    INSERT INTO removed (bucket, key, version, stamp, at_ns)
        VALUES (in_bucket, in_key,
                coalesce(gone, CASE WHEN has_found THEN found_one.version END, ''), at, now_ns)
        ON CONFLICT (bucket, key, version) DO UPDATE
            SET at_ns = excluded.at_ns, stamp = greatest(removed.stamp, excluded.stamp);
    IF NOT has_found OR found_one.stamp > at THEN
        RETURN;
    END IF;
    IF NOT found_one.marker THEN
        bytes := -found_one.size;
        objects := -1;
    END IF;
    IF is_current AND found_one.version = top.version THEN
        DELETE FROM objects o WHERE o.bucket = in_bucket AND o.key = in_key;
    ELSE
        DELETE FROM versions o
            WHERE o.bucket = in_bucket AND o.key = in_key AND o.version = found_one.version;
        IF NOT has_top OR found_one.version <> top.version THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO top FROM versions o WHERE o.bucket = in_bucket AND o.key = in_key
        ORDER BY o.stamp DESC LIMIT 1;
    IF FOUND AND NOT top.marker THEN  -- the newest of the older versions becomes current
        DELETE FROM versions o WHERE o.bucket = in_bucket AND o.key = in_key AND o.version = top.version;
        {_INTO_OBJECTS.format("top")}
    END IF;
END $$
"""

# Changes in one transaction, sorted by bucket, with the ledger; reservations that end with them go. Says
# which buckets are gone: what was published in them is left out.
_APPLY: Final = """
CREATE OR REPLACE FUNCTION cumulus_apply(changes json, settled bigint[], now_ns bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    c record; delta record; at_bucket text; more_bytes bigint := 0; more_objects bigint := 0;
    there boolean := false; missing text[] := '{}';
BEGIN
    FOR c IN SELECT * FROM json_to_recordset(changes) AS x(
        kind text, bucket text, key text, version text, stamp bigint, name text, token text, size bigint,
        etag text, modified_ns bigint, owner text, checksum text, checksum_type text, keep boolean)
    LOOP
        IF c.bucket IS DISTINCT FROM at_bucket THEN
            IF more_bytes <> 0 OR more_objects <> 0 THEN
                UPDATE ledger l SET bytes = l.bytes + more_bytes, objects = l.objects + more_objects
                    WHERE l.bucket = at_bucket;
            END IF;
            more_bytes := 0;
            more_objects := 0;
            at_bucket := c.bucket;
            PERFORM 1 FROM ledger l WHERE l.bucket = at_bucket FOR UPDATE;
            there := FOUND;
        END IF;
        IF c.kind = 'remove' THEN
            delta := cumulus_remove(c.bucket, decode(c.key, 'base64'), c.version, c.stamp, now_ns);
        ELSIF NOT there THEN
            missing := array_append(missing, c.bucket);
            CONTINUE;
        ELSE
            delta := cumulus_put(
                ROW(c.bucket, decode(c.key, 'base64'), c.version, c.stamp, c.name, decode(c.token, 'base64'),
                    c.size, c.etag, c.modified_ns, c.owner, c.checksum, c.checksum_type,
                    c.kind = 'marker')::versions,
                c.keep);
        END IF;
        more_bytes := more_bytes + delta.bytes;
        more_objects := more_objects + delta.objects;
    END LOOP;
    IF more_bytes <> 0 OR more_objects <> 0 THEN
        UPDATE ledger l SET bytes = l.bytes + more_bytes, objects = l.objects + more_objects
            WHERE l.bucket = at_bucket;
    END IF;
    IF cardinality(settled) > 0 THEN
        DELETE FROM reservations r WHERE r.id = ANY (settled);
    END IF;
    RETURN missing;
END $$
"""

# Record a part; NULL: there is no such upload, and nothing was done.
_PUT_PART: Final = """
CREATE OR REPLACE FUNCTION cumulus_put_part(
    in_upload text, in_number integer, in_size bigint, in_record bytea, settled bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    at_bucket text; former bigint;
BEGIN
    SELECT u.bucket INTO at_bucket FROM uploads u WHERE u.id = in_upload;
    PERFORM 1 FROM ledger l WHERE l.bucket = at_bucket FOR UPDATE;
    PERFORM 1 FROM uploads u WHERE u.id = in_upload;  -- it may have ended while we waited
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT p.size INTO former FROM parts p WHERE p.upload_id = in_upload AND p.number = in_number;
    INSERT INTO parts (upload_id, number, size, record) VALUES (in_upload, in_number, in_size, in_record)
        ON CONFLICT (upload_id, number) DO UPDATE SET size = excluded.size, record = excluded.record;
    UPDATE ledger l SET held = l.held + in_size - coalesce(former, 0) WHERE l.bucket = at_bucket;
    DELETE FROM reservations r WHERE r.id = settled;
    RETURN coalesce(former, 0);
END $$
"""

# End an upload; what it has become is applied in the same transaction. False: there was none. NULL: another
# has claimed it.
_DROP_UPLOAD: Final = """
CREATE OR REPLACE FUNCTION cumulus_drop_upload(
    in_upload text, in_claimant text, changes json, settled bigint[], now_ns bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    at_bucket text; was_held bigint; claimed boolean;
BEGIN
    SELECT u.bucket INTO at_bucket FROM uploads u WHERE u.id = in_upload;
    PERFORM 1 FROM ledger l WHERE l.bucket = at_bucket FOR UPDATE;
    SELECT u.claimant <> in_claimant
            AND u.claimed_until_ns > extract(epoch FROM clock_timestamp()) * 1000000000
        INTO claimed FROM uploads u WHERE u.id = in_upload FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF claimed THEN
        RETURN NULL;
    END IF;
    DELETE FROM uploads u WHERE u.id = in_upload;
    SELECT coalesce(sum(p.size), 0) INTO was_held FROM parts p WHERE p.upload_id = in_upload;
    DELETE FROM parts p WHERE p.upload_id = in_upload;
    UPDATE ledger l SET held = l.held - was_held WHERE l.bucket = at_bucket;
    PERFORM cumulus_apply(changes, settled, now_ns);
    RETURN true;
END $$
"""

# What scopes ([{scope, name, owners}], owners of all but buckets) hold, have reserved and may hold. One
# statement, so that what becomes used and is no longer reserved is counted once. (PL/pgSQL keeps its plan.)
_SUMS: Final = """
CREATE OR REPLACE FUNCTION cumulus_sums(scopes json) RETURNS TABLE (
    place bigint, scope text, name text, used bigint, objects bigint, held bigint, reserved bigint,
    reserved_objects bigint, hard_bytes bigint, hard_objects bigint, soft_bytes bigint, soft_objects bigint,
    grace_s bigint, over_soft_since_ns bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT s.place, s.scope, s.name, u.used, u.objects, u.held, r.reserved, r.objects,
        coalesce(q.hard_bytes, 0), coalesce(q.hard_objects, 0), coalesce(q.soft_bytes, 0),
        coalesce(q.soft_objects, 0), coalesce(q.grace_s, 0), coalesce(q.over_soft_since_ns, 0)
    FROM ROWS FROM (json_to_recordset(scopes) AS (scope text, name text, owners text[]))
        WITH ORDINALITY AS s(scope, name, owners, place)
    LEFT JOIN quotas q ON q.scope = s.scope AND q.name = s.name
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(a.bytes), 0)::bigint AS used, coalesce(sum(a.objects), 0)::bigint AS objects,
            coalesce(sum(a.held), 0)::bigint AS held
        FROM (
            SELECT l.bytes, l.objects, l.held FROM ledger l WHERE s.scope = 'bucket' AND l.bucket = s.name
            UNION ALL
            SELECT l.bytes, l.objects, l.held FROM buckets b JOIN ledger l ON l.bucket = b.name
                WHERE s.scope <> 'bucket' AND b.owner = ANY (s.owners)
        ) a
    ) u
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(a.bytes), 0)::bigint AS reserved, coalesce(sum(a.objects), 0)::bigint AS objects
        FROM reservations a
        JOIN holders h ON h.id = a.holder AND h.expires > clock_timestamp()
        JOIN buckets b ON b.name = a.bucket
        WHERE CASE WHEN s.scope = 'bucket' THEN a.bucket = s.name ELSE b.owner = ANY (s.owners) END
    ) r
    ORDER BY s.place;
END $$
"""

# Note since when scopes are over a soft limit, or that they no longer are; whether any changed.
_MARK_SOFT: Final = """
CREATE OR REPLACE FUNCTION cumulus_mark_soft(scopes json, now_ns bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE quotas q SET over_soft_since_ns = CASE WHEN s.is_over THEN now_ns ELSE 0 END
    FROM (
        SELECT a.scope, a.name, a.over_soft_since_ns > 0 AS was_over,
            (a.soft_bytes > 0 AND a.used > a.soft_bytes)
            OR (a.soft_objects > 0 AND a.objects > a.soft_objects) AS is_over
        FROM cumulus_sums(scopes) a
    ) s
    WHERE q.scope = s.scope AND q.name = s.name AND s.is_over <> s.was_over;
    RETURN FOUND;
END $$
"""

# Hold room for requests [{id, bucket, bytes, objects, scopes}] one after another; `id` of a reservation that
# grows, or 0. Says for each its id, or what refuses it. Nothing is held where no quota is set (id 0). All
# fail (CU001) when the holder's time is over.
_RESERVE: Final = """
CREATE OR REPLACE FUNCTION cumulus_reserve(in_holder bigint, requests json, now_ns bigint)
RETURNS TABLE (
    made bigint, scope text, name text, what text, used bigint, pending bigint, most bigint)
LANGUAGE plpgsql AS $$
DECLARE
    request record;
BEGIN
    PERFORM 1 FROM holders h WHERE h.id = in_holder AND h.expires > clock_timestamp();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the time of holder % is over', in_holder USING ERRCODE = 'CU001';
    END IF;
    PERFORM 1 FROM quotas q WHERE (q.scope, q.name) IN (
            SELECT s.scope, s.name FROM json_to_recordset(requests) AS a(scopes json)
            CROSS JOIN LATERAL json_to_recordset(a.scopes) AS s(scope text, name text))
        ORDER BY q.scope, q.name FOR UPDATE;
    FOR request IN SELECT * FROM json_to_recordset(requests)
        AS a(id bigint, bucket text, bytes bigint, objects bigint, scopes json)
    LOOP
        made := 0;
        SELECT s.scope, s.name, c.what, c.used, c.pending, c.most
        INTO scope, name, what, used, pending, most
        FROM cumulus_sums(request.scopes) s
        CROSS JOIN LATERAL (
            SELECT s.over_soft_since_ns > 0 AND now_ns - s.over_soft_since_ns > s.grace_s * 1000000000 AS late
        ) l
        CROSS JOIN LATERAL (VALUES
            (1, 'bytes', s.used, s.held + s.reserved, request.bytes, s.hard_bytes, true),
            (2, 'bytes', s.used, s.held + s.reserved, request.bytes, s.soft_bytes, l.late),
            (3, 'objects', s.objects, s.reserved_objects, request.objects, s.hard_objects, true),
            (4, 'objects', s.objects, s.reserved_objects, request.objects, s.soft_objects, l.late)
        ) c(turn, what, used, pending, more, most, counts)
        WHERE c.counts AND c.most > 0 AND c.more > 0 AND c.used + c.pending + c.more > c.most
        ORDER BY s.place, c.turn LIMIT 1;
        IF NOT FOUND THEN
            IF request.id <> 0 THEN
                UPDATE reservations r SET bytes = r.bytes + request.bytes
                    WHERE r.id = request.id RETURNING r.id INTO made;
            ELSIF EXISTS (
                SELECT 1 FROM quotas q
                JOIN json_to_recordset(request.scopes) AS s(scope text, name text)
                    ON q.scope = s.scope AND q.name = s.name)
            THEN
                INSERT INTO reservations (holder, bucket, bytes, objects)
                    VALUES (in_holder, request.bucket, request.bytes, request.objects)
                    RETURNING id INTO made;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$
"""

# A page with common prefixes: `cumulus.index.listing`. At most a row more than `most`, which says that the
# listing goes on; below a common prefix a handful of rows are read, then the search goes on behind it. The
# settings keep the plan one that reads the index in order.
_PAGE: Final = """
CREATE OR REPLACE FUNCTION cumulus_page(
    in_bucket text, first_key bytea, end_key bytea, prefix_length integer, delimiter bytea, most integer)
RETURNS TABLE (common bytea, item objects)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    o objects; at integer; near integer := 0; under bytea; count integer := 0; from_key bytea := first_key;
BEGIN
    WHILE from_key IS NOT NULL AND from_key < end_key LOOP
        under := NULL;
        FOR o IN SELECT * FROM objects a
            WHERE a.bucket = in_bucket AND a.key >= from_key AND a.key < end_key ORDER BY a.key
        LOOP
            from_key := NULL;
            IF under IS NOT NULL AND substring(o.key FROM 1 FOR length(under)) = under THEN
                near := near + 1;
                IF near >= 8 THEN
                    from_key := set_byte(
                        under, length(under) - 1, get_byte(under, length(under) - 1) + 1);
                    EXIT;
                END IF;
                CONTINUE;
            END IF;
            under := NULL;
            near := 0;
            at := position(delimiter IN substring(o.key FROM prefix_length + 1));
            IF at > 0 THEN
                under := substring(o.key FROM 1 FOR prefix_length + at - 1 + length(delimiter));
                common := under;
                item := NULL;
            ELSE
                common := NULL;
                item := o;
            END IF;
            RETURN NEXT;
            count := count + 1;
            IF count > most THEN
                RETURN;
            END IF;
        END LOOP;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END $$
"""

# Make the ledger of a bucket fit its rows and uploads; false: there is none.
_RECOUNT: Final = """
CREATE OR REPLACE FUNCTION cumulus_recount(in_bucket text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM ledger l WHERE l.bucket = in_bucket FOR UPDATE;
    UPDATE ledger l SET (bytes, objects) = (
            SELECT coalesce(sum(a.size), 0)::bigint, count(*)
            FROM (SELECT o.size FROM objects o WHERE o.bucket = in_bucket
                  UNION ALL
                  SELECT v.size FROM versions v WHERE v.bucket = in_bucket AND NOT v.marker) a),
        held = (SELECT coalesce(sum(p.size), 0)::bigint FROM parts p JOIN uploads u ON u.id = p.upload_id
                WHERE u.bucket = in_bucket)
        WHERE l.bucket = in_bucket;
    RETURN FOUND;
END $$
"""

FUNCTIONS: Final = (
    _PUT, _REMOVE, _APPLY, _PUT_PART, _DROP_UPLOAD, _SUMS, _MARK_SOFT, _RESERVE, _PAGE, _RECOUNT,
)  # fmt: skip
