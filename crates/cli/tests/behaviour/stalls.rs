//! Does anybody who does not answer, or does not read, hold the command up?

use std::io::{Read, Write};

use crate::support::{Lab, finish};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use syncguard_testkit::{Fault, FaultProxy, RedisOptions, RedisServer};

/// A server that is silent would be waited for by the driver's own patience, not by ours.
#[test]
fn a_server_that_does_not_answer_ends_the_wait_with_69() {
    let lab = Lab::new();
    let server = RedisServer::start(RedisOptions::new());
    let proxy = FaultProxy::start(server.port());
    let url = proxy.url(&server.url());
    proxy.set(Fault::DropReplies);
    for flags in [&["-n"][..], &["-w", "1s"]] {
        let all = [&["run"], flags, &["k", "--", "echo", "ran"]].concat();
        let said = finish(lab.command(all).env("SYNCGUARD_URL", &url).spawn().unwrap());
        assert_eq!((said.code, said.stdout.as_str()), (Some(69), ""), "{flags:?}: {said:?}");
        let is_wall = said.stderr.contains("did not answer within 1.");
        assert_eq!(is_wall, flags == ["-w", "1s"], "{said:?}");
    }
}

#[test]
fn a_wait_for_a_server_that_is_not_there_is_said_and_can_be_ended() {
    let lab = Lab::new();
    let url = format!("redis://127.0.0.1:{}", syncguard_testkit::free_port());
    let mut command = lab.command(["run", "-w", "forever", "k", "--", "echo", "ran"]);
    let mut waiter = command.env("SYNCGUARD_URL", &url).spawn().unwrap();
    let mut first = [0; 23];
    waiter.stderr.as_mut().unwrap().read_exact(&mut first).unwrap();

    terminate(&waiter);
    let said = finish(waiter);

    assert_eq!(&first, b"waiting for the backend");
    assert_eq!((said.code, said.stdout.as_str()), (Some(143), ""), "{said:?}");
}

#[test]
fn a_waiter_whose_messages_nobody_reads_still_hears() {
    let lab = Lab::new();
    let holder = lab.hold(&[], "k");
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();

    let status = lab.command(["run", "-w", "1s", "k", "--", "echo", "ran"]).stderr(writer).status().unwrap();

    assert_eq!(status.code(), Some(75), "its wait was over although nobody read a word");
    drop(reader);
    holder.signal(Signal::TERM);
    holder.finish();
}

fn terminate(process: &std::process::Child) {
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
}
