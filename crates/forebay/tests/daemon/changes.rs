//! Changes of one volume by several operators at once.

use crate::process::Daemon;
use std::thread;

#[test]
fn conflicting_changes_at_once_are_made_one_after_the_other_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volume = ["v=memory:8MiB,mode=write-through".to_owned()];
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &volume);
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
    let changes: [&[&str]; 5] = [
        &["volume", "set", "v", "mode=bypass"],
        &["volume", "set", "v", "mode=write-through", "prefetch=no"],
        &["volume", "set", "v", "prefetch=yes"],
        &["pin", "v", "0+512KiB"],
        &["volume", "flush", "v"],
    ];
    thread::scope(|scope| {
        let operators: Vec<_> = changes
            .iter()
            .map(|change| scope.spawn(|| [(); 8].map(|()| (*change, daemon.run(change)))))
            .collect();
        let mut client = daemon.client("v");
        for at in 0..32 {
            client.write(at << 15, &content[at as usize * 32768..][..32768]).unwrap();
        }
        for (change, (code, text)) in operators.into_iter().flat_map(|one| one.join().unwrap()) {
            // In bypass, nothing can be pinned.
            let is_refused = text.contains("bypass") || text.contains("being ");
            assert!(code == Some(0) || (change[0] == "pin" && is_refused), "{change:?}: {text}");
        }
    });
    let status = daemon.status();
    let settings = &status["volumes"][0]["settings"];
    assert!(
        ["bypass", "write-through"].contains(&settings["mode"].as_str().unwrap()),
        "{settings}"
    );
    let mut client = daemon.client("v");
    assert!(client.read(0, 1 << 20).unwrap() == content);
    drop(client);
    daemon.stop();
}
