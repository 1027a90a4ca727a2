-- The highest fence that was accepted for each key. Never delete a row: with it goes the memory of who was here.
CREATE TABLE IF NOT EXISTS syncguard_marks (
    key   TEXT    NOT NULL PRIMARY KEY,
    fence INTEGER NOT NULL CHECK (typeof(fence) = 'integer' AND fence BETWEEN 1 AND 900000000000000)
) WITHOUT ROWID;
