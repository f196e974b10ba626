//! The effect of less or more memory on a volume, and the parts of the pool that volumes have, as
//! the status shows them.

use crate::process::{Daemon, MIB, on_one_line};

#[test]
fn the_status_says_that_half_the_pool_would_do_for_a_small_volume() {
    let directory = tempfile::tempdir().unwrap();
    let volume = "disk=memory:32MiB,prefetch=no".to_owned();
    let daemon = Daemon::start(directory.path(), "auto", "256MiB", &[volume]);
    let curve = || daemon.status()["volumes"][0]["curve"].clone();
    assert_eq!((&curve()["accesses"], &curve()["points"]), (&0.into(), &serde_json::json!([])));
    let shown = || on_one_line(&daemon.run(&["status", "disk"]).1);
    assert!(!shown().contains("memory advice"), "before the first access");

    let mut client = daemon.client("disk");
    for n in 0..3 * 32 {
        client.read(n % 32 * MIB, MIB).unwrap();
    }
    let curve = curve();
    assert_eq!(curve["accesses"], 3 * 32 * 256, "{curve}");
    let points = curve["points"].as_array().unwrap();
    let ratios: Vec<f64> =
        points.iter().map(|point| point["miss_ratio"].as_f64().unwrap()).collect();
    assert_eq!(ratios.len(), 4, "half of the pool to four pools: {curve}");
    // The first of three passes misses, whatever the size.
    assert!(ratios.iter().all(|ratio| (0.3..0.37).contains(ratio)), "{curve}");
    let outlook = &curve["outlook"];
    for figure in ["miss_ratio_half", "miss_ratio_now", "miss_ratio_twice"] {
        let ratio = outlook[figure].as_f64().unwrap();
        assert!((0.3..0.37).contains(&ratio), "{curve}");
    }
    assert_eq!(outlook["advice"], "less", "{curve}");
    let (text, reason) = (shown(), outlook["reason"].as_str().unwrap());
    assert!(text.contains(" with half the pool, "), "{text}");
    assert!(text.contains("memory advice ") && text.contains(&format!(": {reason} ")), "{text}");
    daemon.stop();
}

#[test]
fn the_status_says_what_part_of_the_pool_each_volume_has_and_what_its_curve_would_give_it() {
    let directory = tempfile::tempdir().unwrap();
    let volume = |name: &str| format!("{name}=memory:64MiB,prefetch=no");
    let daemon = Daemon::start(directory.path(), "auto", "64MiB", &[volume("hot"), volume("scan")]);
    let division = || daemon.status()["division"].clone();
    let reason = |division: &serde_json::Value| division["reason"].as_str().unwrap().to_owned();
    let before = division();
    assert!(reason(&before).ends_with("too few accesses are known"), "{before}");
    let (mut hot, mut scan) = (daemon.client("hot"), daemon.client("scan"));
    for n in 0..64 {
        scan.read(n * MIB, MIB).unwrap();
        for at in 0..4 {
            hot.read(at * MIB, MIB).unwrap();
        }
    }
    let found = division();
    let part = |at: usize, field: &str| found["volumes"][at][field].as_f64().unwrap();
    let by_curves = [part(0, "part_by_curves"), part(1, "part_by_curves")];
    assert!(by_curves[0] > 0.05 && by_curves[1] > 0.0, "{found}");
    assert_eq!(found["volumes"][0]["name"], "hot");
    assert!(part(0, "lines") >= 1024.0 && part(1, "lines") > 0.0, "{found}");
    assert!((0.0..0.5).contains(&found["gain"].as_f64().unwrap()), "{found}");
    let text = on_one_line(&daemon.run(&["status", "--all"]).1);
    assert!(text.contains("Parts of the pool") && text.contains(&reason(&found)), "{text}");
    daemon.stop();
}
