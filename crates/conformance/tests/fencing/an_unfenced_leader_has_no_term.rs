use syncguard_core::Unfenced;
use syncguard_core::election::Leadership;

fn use_it(leader: &Leadership<Unfenced>) {
    leader.term();
}

fn main() {}
