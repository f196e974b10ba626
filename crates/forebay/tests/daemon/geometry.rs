//! The geometry of disks: set, reported by the disk, or unknown, and shown in the status.

use crate::process::{Daemon, on_one_line, run_forebay, status};
use forebay_nbd::proto::export_flag;
use serde_json::json;

#[test]
fn disk_geometry_is_shown_and_settings_override_the_device() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(
        at("forebay.toml"),
        "[[volume]]\nname = \"array\"\nbacking = \"memory:8MiB\"\nstripe = \"112KiB\"\n\
         chunk = 16384\nstripe-offset = \"96KiB\"\nrotational = true\n\
         [[volume]]\nname = \"wide\"\nbacking = \"memory:8MiB\"\nstripe = \"1GiB\"\n\
         [[volume]]\nname = \"plain\"\nbacking = \"memory:8MiB\"\n",
    )
    .unwrap();
    let daemon = Daemon::start_kept_with(directory.path(), &at("forebay.toml"));
    let contradiction = "the disk reports rotational=no, but rotational=yes is set by hand and \
                         takes effect: leave it out if the disk is right";
    let found = status(directory.path());
    let [array, wide, plain] = [0, 1, 2].map(|n| &found["volumes"][n]["geometry"]);
    assert_eq!(
        *array,
        json!({
            "stripe_bytes": 112 << 10, "stripe_source": "set-by-hand",
            "chunk_bytes": 16 << 10, "chunk_source": "set-by-hand",
            "stripe_offset_bytes": 96 << 10, "stripe_offset_source": "set-by-hand",
            "optimal_bytes": 112 << 10,
            "rotational": true, "rotational_source": "set-by-hand",
            "notes": [contradiction],
        })
    );
    assert_eq!(wide["stripe_bytes"], 1 << 30);
    let note = wide["notes"][0].as_str().unwrap();
    assert!(note.starts_with("a stripe of 1GiB exceeds the dirty limit, "), "{note}");
    assert_eq!((&plain["stripe_source"], &plain["notes"]), (&json!("unknown"), &json!([])));
    assert_eq!(
        (&plain["rotational"], &plain["rotational_source"]),
        (&json!(false), &json!("device"))
    );

    let text = on_one_line(&run_forebay(directory.path(), &["status", "array"]).1);
    let fields = "stripe 112KiB (set by hand) chunk 16KiB (set by hand) stripes from 96KiB (set by \
                  hand) optimal I/O 112KiB rotational yes (set by hand)";
    assert!(text.contains(fields), "{text}");
    let text = on_one_line(&run_forebay(directory.path(), &["status"]).1);
    for sentence in [format!("array: {contradiction}"), format!("wide: {note}")] {
        assert!(text.contains(&format!("warning volume {sentence}")), "{text}");
        let (name, note) = sentence.split_once(": ").unwrap();
        daemon.wait_for_log(&format!("inconsistent disk geometry volume={name} note={note}"));
    }
    let is_rotational = |volume: &str| daemon.client(volume).opened.can(export_flag::ROTATIONAL);
    assert_eq!((is_rotational("array"), is_rotational("plain")), (true, false));

    let (code, text) = run_forebay(directory.path(), &["volume", "set", "array", "stripe=none"]);
    let sentence =
        "volume 'array': stripe cannot change from 112KiB to none while the volume is served";
    assert!(code != Some(0) && text.contains(sentence), "{text}");
    let settings = "new=memory:1MiB,chunk=64KiB,rotational=auto";
    let (code, text) = run_forebay(directory.path(), &["volume", "add", settings]);
    assert!(
        code == Some(0) && text.contains("chunk is set by hand, but the disk has no known"),
        "{text}"
    );
}
