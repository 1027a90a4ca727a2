use syncguard_core::{Fence, Guard, LockError, Locker, MemoryBackend};

async fn fence_of(locker: &Locker) -> Result<Fence, LockError> {
    let guard: Guard = locker.lock("k").acquire().await?;
    Ok(guard.fence())
}

fn main() {
    let _ = fence_of(&Locker::new(MemoryBackend::new()));
}
