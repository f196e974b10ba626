//! The advice for the volumes of a running server.

use crate::process::Daemon;

const LINE: u64 = 4096;

#[test]
fn volumes_are_judged_by_what_memory_serves_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = [
        "hot=memory:64MiB,prefetch=no",
        "cold=delay(read=1ms):memory:64MiB,prefetch=no",
        "out=memory:64MiB,mode=bypass",
        "idle=memory:64MiB",
    ];
    let volumes = volumes.map(str::to_owned);
    let daemon = Daemon::start(directory.path(), "auto", "96MiB", &volumes);
    for (name, lines) in [("hot", 20), ("cold", 2_000), ("out", 2_000)] {
        let mut client = daemon.client(name);
        for n in 0..1_200 {
            client.read(n % lines * 7 * LINE, LINE).unwrap();
        }
    }
    let (code, text) = daemon.run(&["advise", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = |name: &str| {
        let volumes = report["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
    };
    let hot = found("hot");
    let advice = hot["advice"].as_str().unwrap();
    assert!(["keep", "less-memory"].contains(&advice), "{text}");
    assert_eq!((&hot["reads"], &hot["read_hits"]), (&1_200.into(), &1_180.into()), "{text}");
    // It has not been served for an hour.
    assert_eq!(found("cold")["advice"], "too-early", "{text}");
    assert_eq!(found("out")["advice"], "stay-out", "{text}");
    assert_eq!(
        (&found("idle")["advice"], &found("idle")["known"]),
        (&"idle".into(), &false.into())
    );
    let (_, text) = daemon.run(&["advise"]);
    assert!(text.contains("\nhot: keep it") && text.contains("\nout: leave it out"), "{text}");
    daemon.stop();
}
