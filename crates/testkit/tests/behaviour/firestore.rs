//! Does Google's emulator start, answer and end, or say why it cannot?

use std::net::TcpStream;

use syncguard_testkit::FirestoreEmulator;
use syncguard_testkit::process::is_alive;

#[test]
fn the_emulator_serves_until_it_is_dropped_or_says_how_to_get_it() {
    let emulator = match FirestoreEmulator::try_start() {
        Ok(emulator) => emulator,
        Err(error) => {
            assert!(FirestoreEmulator::find().is_err(), "it is installed and does not start: {error:#}");
            assert!(format!("{error:#}").contains("hint: apt-get install"), "{error:#}");
            return;
        }
    };
    let (pid, address) = (emulator.pid(), emulator.address());
    assert!(TcpStream::connect(&address).is_ok());

    drop(emulator);

    assert!(!is_alive(pid));
    assert!(TcpStream::connect(&address).is_err());
}
