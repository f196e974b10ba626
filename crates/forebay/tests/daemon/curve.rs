//! The effect of less or more memory on a volume, as the status shows it.

use crate::process::{Daemon, MIB};

#[test]
fn the_status_says_that_half_the_pool_would_do_for_a_small_volume() {
    let directory = tempfile::tempdir().unwrap();
    let volume = "disk=memory:32MiB,prefetch=no".to_owned();
    let daemon = Daemon::start(directory.path(), "auto", "256MiB", &[volume]);
    let curve = || daemon.status()["volumes"][0]["curve"].clone();
    assert_eq!((&curve()["accesses"], &curve()["points"]), (&0.into(), &serde_json::json!([])));
    assert!(!daemon.run(&["status"]).1.contains("MISSES OF"), "before the first access");

    let mut client = daemon.client("disk");
    for n in 0..3 * 32 {
        client.read(n % 32 * MIB, MIB).unwrap();
    }
    let curve = curve();
    assert_eq!(curve["accesses"], 3 * 32 * 256, "{curve}");
    let points = curve["points"].as_array().unwrap();
    let ratios: Vec<f64> =
        points.iter().map(|point| point["miss_ratio"].as_f64().unwrap()).collect();
    assert_eq!(ratios.len(), 11, "{curve}");
    assert!(ratios.is_sorted_by(|small, large| small >= large), "{curve}");
    // The first of three passes misses, whatever the size.
    let outlook = &curve["outlook"];
    for figure in ["miss_ratio_half", "miss_ratio_now", "miss_ratio_twice"] {
        let ratio = outlook[figure].as_f64().unwrap();
        assert!((0.3..0.37).contains(&ratio), "{curve}");
    }
    assert_eq!(outlook["advice"], "less", "{curve}");
    let (_, text) = daemon.run(&["status"]);
    let reason = outlook["reason"].as_str().unwrap();
    assert!(text.contains("MISSES OF") && text.contains(&format!("\ndisk: {reason}\n")), "{text}");
    daemon.stop();
}
