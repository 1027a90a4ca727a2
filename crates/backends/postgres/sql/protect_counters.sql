-- Makes the server refuse to lower, delete or truncate a fence counter, even for the owner of the table.
CREATE OR REPLACE FUNCTION syncguard_fence_must_rise() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence <= OLD.fence THEN
        RAISE EXCEPTION 'a fence counter only rises' USING ERRCODE = '23514';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION syncguard_fence_must_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a fence counter is never deleted' USING ERRCODE = '23514';
END $$;

CREATE OR REPLACE TRIGGER syncguard_fence_must_rise BEFORE UPDATE ON {fences}
    FOR EACH ROW EXECUTE FUNCTION syncguard_fence_must_rise();

CREATE OR REPLACE TRIGGER syncguard_fence_must_stay BEFORE DELETE OR TRUNCATE ON {fences}
    FOR EACH STATEMENT EXECUTE FUNCTION syncguard_fence_must_stay();
