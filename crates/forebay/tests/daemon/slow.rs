//! Slow requests: in the log, by `forebay slow`, and in the API.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, MIB};

#[test]
fn a_slow_request_is_logged_and_shown_with_what_it_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path();
    let volumes = [
        "a=model:fixed?latency=300ms&size=16MiB,slow=100ms,prefetch=no,gather-below=off".to_owned(),
        "b=memory:16MiB,slow=off".to_owned(),
    ];
    let daemon = Daemon::start_with(there, "auto", "64MiB", &volumes, &[]);
    let (code, text) = daemon.run(&["slow", "b"]);
    assert_eq!((code, &*text), (Some(0), "no slow requests\n"));
    let mut client = daemon.client("a");
    assert!(client.read(MIB, 8192).is_ok());
    let (code, text) = daemon.run(&["slow", "a"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(" a: read of 8.0 KiB at 1048576 took "), "{text}");
    assert!(text.contains(", served: miss\n    disk "), "{text}");
    assert!(text.contains(" slow requests since the start\n"), "{text}");
    let (code, json) = daemon.run(&["slow", "--json"]);
    assert_eq!(code, Some(0), "{json}");
    let slow: serde_json::Value = serde_json::from_str(&json).unwrap();
    let requests = slow["requests"].as_array().unwrap();
    let read = requests.iter().find(|it| it["offset"] == 1_048_576).unwrap();
    assert_eq!(
        (&read["volume"], &read["length"], &read["ios"]),
        (&"a".into(), &8192.into(), &1.into())
    );
    let us = |wait: &serde_json::Value| wait["us"].as_u64().unwrap();
    let waits = read["waits"].as_array().unwrap();
    assert_eq!(waits.iter().map(us).sum::<u64>(), read["took_us"].as_u64().unwrap());
    assert!(us(waits.iter().find(|wait| wait["what"] == "disk").unwrap()) >= 100_000, "{read}");
    wait_until("the log has it", PATIENCE, || {
        let log = daemon.log_so_far();
        let line = log.lines().find(|line| line.contains("slow request volume=\"a\""));
        line.is_some_and(|line| line.contains("offset=1048576") && line.contains("waits=\"disk "))
    });
    assert!(client.write(3 * MIB, &[1; 512]).is_ok());
    let (_, text) = daemon.run(&["slow", "-n", "1"]);
    assert!(text.contains(" a: write of 512 B at 3145728 took "), "{text}");
    assert!(text.ends_with("\n1 of 2 slow requests since the start\n"), "{text}");
    // Another threshold is in effect at once.
    assert_eq!(daemon.run(&["volume", "set", "a", "slow=off"]).0, Some(0));
    assert!(client.read(2 * MIB, 4096).is_ok());
    let (_, json) = daemon.run(&["slow", "--json"]);
    assert!(!json.contains("2097152"), "{json}");
    for (arguments, code, said) in [
        (&["slow", "nix"][..], 1, "no volume 'nix'"),
        (&["volume", "set", "a", "slow=1us"], 2, "slow=1us is not between 1ms and 1h"),
        (&["volume", "set", "a", "slow=soon"], 2, "slow='soon' is not a time"),
    ] {
        let (exit, text) = daemon.run(arguments);
        assert!(exit == Some(code) && text.contains(said), "{arguments:?}: {text}");
    }
    daemon.stop();
}
