-- Adds to a file of an earlier version the fences that are promised to the disk ahead. Arguments: none. Answers: none.
--
-- `fence` is what a program of the first version goes on from, so it is the highest fence that may have been given: the
-- end of the promise, synced before the first fence of it is given. `given` is the last one that was, and is not synced.
-- Both say so only in the boot of the machine that is named beside them, and while `promised` equals `fence`: a program of
-- the first version raises that one alone.
ALTER TABLE syncguard_fence_counters ADD COLUMN given INTEGER;
ALTER TABLE syncguard_fence_counters ADD COLUMN promised INTEGER;
ALTER TABLE syncguard_fence_counters ADD COLUMN boot INTEGER;

CREATE TRIGGER syncguard_given_only_rises BEFORE UPDATE OF given ON syncguard_fence_counters
WHEN NEW.given <= OLD.given AND NEW.promised <= OLD.promised
BEGIN
    SELECT RAISE(ABORT, 'a fence that was given is never taken back');
END;
