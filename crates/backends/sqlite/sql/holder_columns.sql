-- Adds to a file of the first version what is told to people about a holder. Arguments: none. Answers: none.
--
-- `holder_id` is the lock id that `label`, `ttl_ms` (the length of the lease) and `asked` (1: somebody wants the lock) were
-- written for. A program of the first version leaves these columns as they are when it takes a lock over; beside another
-- lock id they say nothing. It names its columns in every statement, so it goes on working.
ALTER TABLE syncguard_locks ADD COLUMN holder_id TEXT;
ALTER TABLE syncguard_locks ADD COLUMN ttl_ms INTEGER;
ALTER TABLE syncguard_locks ADD COLUMN asked INTEGER;
