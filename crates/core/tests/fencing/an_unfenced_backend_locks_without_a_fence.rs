use syncguard_core::{Guard, LockError, Locker, Unfenced};

async fn hold(locker: &Locker<Unfenced>) -> Result<(), LockError> {
    let guard: Guard<Unfenced> = locker.lock("k").acquire().await?;
    guard.check()
}

fn main() {
    let _: fn(&Locker<Unfenced>) -> _ = hold;
}
