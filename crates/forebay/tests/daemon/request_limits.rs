//! The limits of a volume's requests: `iops-limit`, `bandwidth-limit`, `limit-burst`.

use crate::common::client::Client;
use crate::process::Daemon;
use forebay_nbd::NbdCommand;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// For how long clients send.
const TIME: Duration = Duration::from_millis(1500);

/// Sends requests for a while, this many at once, and returns how many were answered, and the time.
fn send(client: &mut Client, depth: usize, command: NbdCommand, len: u64) -> (f64, f64) {
    let data = if command == NbdCommand::Write { vec![7; len as usize] } else { Vec::new() };
    let (begin, mut waiting, mut answered) = (Instant::now(), VecDeque::new(), 0.0);
    while begin.elapsed() < TIME {
        while waiting.len() < depth {
            waiting.push_back(client.send(command, 0, 0, len, &data));
        }
        client.wait(waiting.pop_front().unwrap()).result.unwrap();
        answered += 1.0;
    }
    let taken = begin.elapsed().as_secs_f64();
    waiting.into_iter().for_each(|cookie| client.wait(cookie).result.unwrap());
    (answered, taken)
}

fn counter(daemon: &Daemon, volume: usize, name: &str) -> u64 {
    daemon.status()["volumes"][volume]["counters"][name].as_u64().unwrap()
}

fn limits_are_kept(io: &str) {
    let directory = tempfile::tempdir().unwrap();
    let volumes = [
        "a=memory:16MiB,iops-limit=200,limit-burst=250ms".to_owned(),
        "b=memory:16MiB,bandwidth-limit=4MiB/s".to_owned(),
        "c=memory:16MiB".to_owned(),
    ];
    let daemon = Daemon::start_with(directory.path(), io, "64MiB", &volumes, &[]);
    let ((a, a_taken), (b, b_taken), _) = thread::scope(|scope| {
        let run = |volume, depth, command, len| {
            let mut client = daemon.client(volume);
            scope.spawn(move || send(&mut client, depth, command, len))
        };
        let a = run("a", 64, NbdCommand::Trim, 4096);
        let b = run("b", 4, NbdCommand::Write, 65_536);
        let c = run("c", 1, NbdCommand::Read, 4096);
        (a.join().unwrap(), b.join().unwrap(), c.join().unwrap())
    });
    // How many fewer pass depends on the machine.
    let most = 50.0 + 200.0 * a_taken;
    assert!((1.0..=most).contains(&a), "{a} trims of {most}");
    // The burst is 100 ms.
    let most = 4.0 * (0.1 + b_taken) * 16.0;
    assert!((1.0..=most).contains(&b), "{b} writes of {most}");
    let limited = [0, 1, 2].map(|volume| counter(&daemon, volume, "limited"));
    assert!(limited[0] > 0 && limited[1] > 0 && limited[2] == 0, "{limited:?}");
    assert!(counter(&daemon, 0, "limited_us") / limited[0] > 1000);
    let (_, page) = daemon.run(&["status", "a"]);
    assert!(page.contains("waited for limits  "), "{page}");
    daemon.stop();
}

#[test]
fn no_more_than_the_limits_pass_and_other_volumes_are_not_affected() {
    limits_are_kept("auto");
}

#[test]
fn no_more_than_the_limits_pass_and_other_volumes_are_not_affected_on_epoll() {
    limits_are_kept("epoll");
}

#[test]
fn clients_of_a_volume_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let volume = ["v=memory:16MiB,iops-limit=400".to_owned()];
    let daemon = Daemon::start_with(directory.path(), "auto", "64MiB", &volume, &[]);
    let [many, few] = thread::scope(|scope| {
        let runs = [64, 8].map(|depth| {
            let mut client = daemon.client("v");
            scope.spawn(move || send(&mut client, depth, NbdCommand::Read, 4096).0)
        });
        runs.map(|run| run.join().unwrap())
    });
    assert!(many < 2.0 * few && few < 2.0 * many, "{many} and {few}");
    daemon.stop();
}

#[test]
fn a_limit_is_changed_and_lifted_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let volume = ["v=memory:16MiB".to_owned()];
    let daemon = Daemon::start_with(directory.path(), "auto", "64MiB", &volume, &[]);
    let mut client = daemon.client("v");
    client.read(0, 4096).unwrap();
    assert_eq!(daemon.run(&["volume", "set", "v", "iops-limit=1"]).0, Some(0));
    let settings = &daemon.status()["volumes"][0]["settings"];
    assert_eq!((&settings["iops_limit"], &settings["limit_burst"]), (&"1".into(), &"100ms".into()));
    // They would take 100 s. More would not fit in the socket: the server does not read them.
    let cookies: Vec<u64> =
        (0..100).map(|_| client.send(NbdCommand::Read, 0, 0, 512, &[])).collect();
    client.wait(cookies[1]).result.unwrap();
    assert_eq!(daemon.run(&["volume", "set", "v", "iops-limit=off"]).0, Some(0));
    for cookie in &cookies[2..] {
        client.wait(*cookie).result.unwrap();
    }
    assert!((1..10).contains(&counter(&daemon, 0, "limited")));
    daemon.stop();
}

#[test]
fn neither_a_removal_nor_a_stop_waits_for_limited_requests() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = ["v", "w"].map(|name| format!("{name}=memory:16MiB,iops-limit=1"));
    let daemon = Daemon::start_with(directory.path(), "auto", "64MiB", &volumes, &[]);
    let mut clients = ["v", "w"].map(|name| daemon.client(name));
    for client in &mut clients {
        let first = client.send(NbdCommand::Read, 0, 0, 512, &[]);
        (0..100).for_each(|_| _ = client.send(NbdCommand::Write, 0, 0, 512, &[1; 512]));
        client.wait(first).result.unwrap();
    }
    let begin = Instant::now();
    let (code, said) = daemon.run(&["volume", "remove", "v", "--force"]);
    assert_eq!(code, Some(0), "{said}");
    daemon.stop();
    assert!(begin.elapsed() < Duration::from_secs(60), "100 requests take 100 s");
}
