//! The write-gathering threshold of a volume: set, measured or default, and shown in the status.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::process::{Daemon, on_one_line, run_forebay, status};
use serde_json::{Value, json};

#[test]
fn the_gathering_threshold_can_be_set_or_measured_and_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let file = directory.join("forebay.toml");
    std::fs::write(
        &file,
        "[[volume]]\nname = \"disk\"\nbacking = \"model:ssd?size=64MiB\"\n\
         [[volume]]\nname = \"set\"\nbacking = \"memory:8MiB\"\ngather-below = 65536\n\
         [[volume]]\nname = \"bad\"\nbacking = \"error(kind=read):memory:8MiB\"\n",
    )
    .unwrap();
    let daemon = Daemon::start_kept_with(directory, &file);
    let gather = |at: usize| -> Value { status(directory)["volumes"][at]["gather"].clone() };
    assert_eq!(
        gather(1),
        json!({
            "below_bytes": 64 << 10, "source": "set-by-hand", "measured_below_bytes": null,
            "fixed_us": null, "bytes_per_second": null, "not_measured": "gather-below is set",
        })
    );

    // On a loaded machine a single measurement can fail or be wrong.
    wait_until("the disk is measured", PATIENCE, || {
        let (code, text) = run_forebay(directory, &["volume", "calibrate", "disk"]);
        let sentence = "volume 'disk' is measured: writes worth gathering: below ";
        assert!(code != Some(0) || text.starts_with(sentence), "{text}");
        code == Some(0) && gather(0)["fixed_us"].as_f64().unwrap() >= 80.0
    });
    let found = gather(0);
    assert_eq!(found["source"], "measured", "{found}");
    assert_eq!(found["below_bytes"], found["measured_below_bytes"]);
    assert!(found["bytes_per_second"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["not_measured"], Value::Null);

    wait_until("calibration reports the read error", PATIENCE, || {
        let (code, text) = run_forebay(directory, &["volume", "calibrate", "bad"]);
        assert_ne!(code, Some(0), "{text}");
        text.contains("was not measured; the volume is served as before: I/O error at byte ")
            && text.contains("check the kernel log for its disk")
    });
    let found = status(directory)["volumes"][2].clone();
    assert_eq!(
        (&found["state"], &found["gather"]["source"]),
        (&json!("serving"), &json!("default"))
    );
    let reason = found["gather"]["not_measured"].as_str().unwrap();
    assert!(reason.starts_with("I/O error at byte "), "{reason}");
    let (code, text) = run_forebay(directory, &["volume", "calibrate", "none"]);
    assert!(code != Some(0) && text.contains("no volume 'none'"), "{text}");

    for (volume, source, reason) in
        [("set", "set by hand", "gather-below is set"), ("bad", "default", reason)]
    {
        let text = on_one_line(&run_forebay(directory, &["status", volume]).1);
        let fields =
            format!("worth gathering below 64KiB ({source}) cost of an I/O not measured: {reason}");
        assert!(text.contains(&fields), "{text}");
    }
    let set = |setting: &str| run_forebay(directory, &["volume", "set", "set", setting]);
    assert_eq!(set("gather-below=off").0, Some(0));
    assert_eq!(gather(1)["below_bytes"], 0);
    assert_eq!(set("gather-below=auto").0, Some(0));
    assert_eq!(gather(1)["source"], "default");
    let (code, text) = set("gather-below=64KB");
    assert!(
        code != Some(0) && text.contains("gather-below='64KB' is not a size: units are"),
        "{text}"
    );

    // A restart measures no disk again that it knows.
    let before = gather(0);
    daemon.stop();
    let _daemon = Daemon::start_kept_with(directory, &file);
    assert_eq!(gather(0), before);
    let kept = std::fs::read_to_string(directory.join("state/calibrations.json")).unwrap();
    assert!(kept.contains("\"model:ssd?size=64MiB\""), "{kept}");
}
