//! Calibration: its results, that it never delays clients, and how it ends.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::{Server, in_mode, settings};
use forebay_backend::layers::{ErrorLayer, ErrorRule, Gate, Kinds};
use forebay_backend::{Backend, MemoryBackend, OpenOptions};
use forebay_nbd::NbdCommand;
use forebay_runtime::{
    CalibrateError, Calibration, CalibrationFailure, Engine, GatherStatus, SplitCost,
    ThresholdSource, VolumeError,
};
use forebay_types::{Auto, Fault, IoError, Mode, VolumeConfig};
use std::sync::Arc;
use std::time::Duration;

on_both_engines! {
    modelled_disks_are_measured,
    an_added_volume_is_measured_with_reads_only,
    a_threshold_set_by_hand_wins_and_is_not_measured,
    a_disk_that_fails_reads_is_not_measured_and_served_as_before,
    a_hanging_read_is_abandoned_and_delays_no_other_disk,
    no_read_begins_while_a_request_is_in_flight,
    a_removal_waits_until_the_disk_is_closed,
    a_disk_too_small_for_a_measurement_is_reported,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Long enough for an unwanted event to occur.
const MOMENT: Duration = Duration::from_millis(100);

/// A volume that is measured only on request.
fn add(server: &Server, name: &str, disk: &Arc<dyn Backend>) {
    server.add(name, Arc::clone(disk), Mode::WriteThrough);
}

/// A volume that is measured automatically.
fn add_auto(server: &Server, disk: Arc<dyn Backend>) {
    let mut settings = settings("disk", disk, Mode::WriteThrough);
    settings.config.gather_below = Auto::Auto;
    server.runtime.volumes().add(settings).unwrap();
}

fn gather(server: &Server) -> GatherStatus {
    server.status("disk").gather
}

fn set(server: &Server, gather_below: Auto<u64>) {
    let change = VolumeConfig { gather_below, ..in_mode(Mode::WriteThrough) };
    server.runtime.volumes().change("disk", change, false).unwrap();
}

fn gate() -> Arc<Gate> {
    Gate::new(Arc::new(MemoryBackend::new(16 * MIB).unwrap()))
}

fn failure(server: &Server) -> CalibrationFailure {
    loop {
        match server.runtime.volumes().calibrate("disk") {
            Err(VolumeError::Calibrate(CalibrateError::Failed { failure, .. })) => return failure,
            // The machine was too loaded for a measurement.
            Err(VolumeError::Calibrate(CalibrateError::Busy(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Measures a volume until the result is as expected: on a loaded machine, one measurement can be
/// inconclusive or wrong.
fn measured(server: &Server, name: &str, is_expected: impl Fn(&SplitCost) -> bool) -> SplitCost {
    let (mut cost, mut last) = (None, String::new());
    wait_until(&format!("'{name}' is measured"), PATIENCE, || {
        let result = server.runtime.volumes().calibrate(name);
        last = format!("{result:?}");
        cost = result.ok().filter(&is_expected);
        cost.is_some()
    });
    cost.unwrap_or_else(|| panic!("{last}"))
}

fn modelled_disks_are_measured(engine: Engine) {
    let server = Server::start(engine);
    for (backing, thresholds) in [
        ("model:hdd?size=8GiB", 2 * MIB..=16 * MIB),
        ("model:ssd?size=8GiB", 128 * KIB..=2 * MIB),
        ("model:fixed?size=8GiB&latency=2ms", 4 * MIB..=32 * MIB),
    ] {
        let disk = forebay_backend::open(backing, &OpenOptions::default()).unwrap();
        add(&server, backing, &disk);
        let cost = measured(&server, backing, |cost| {
            thresholds.contains(&cost.threshold_bytes) && cost.fixed_us() > 50.0
        });
        assert_eq!(server.status(backing).gather.measured, Some(cost));
    }
    server.stop();
}

fn an_added_volume_is_measured_with_reads_only(engine: Engine) {
    let server = Server::start(engine);
    let gate = gate();
    // The gate holds all I/O other than reads.
    let no_reads = [Kinds::WRITE, Kinds::FLUSH, Kinds::DISCARD, Kinds::ZERO];
    gate.close(no_reads.into_iter().fold(Kinds::NONE, Kinds::union));
    let after = loop {
        add_auto(&server, Arc::clone(&gate) as _);
        let before = gather(&server);
        assert_eq!((before.below_bytes, before.source), (64 * KIB, ThresholdSource::Default));
        assert_eq!(before.calibration, Calibration::Waiting, "the volume is served meanwhile");
        let is_over = || gather(&server).calibration != Calibration::Waiting;
        wait_until("the measurement is over", PATIENCE, is_over);
        let after = gather(&server);
        use CalibrationFailure::{Slow, Unclear};
        if !matches!(after.calibration, Calibration::Failed(Slow { .. } | Unclear(_))) {
            break after;
        }
        // The machine was too loaded for a result. The next volume is measured, too.
        server.runtime.volumes().remove("disk", |_| ()).unwrap();
    };
    assert_eq!(after.calibration, Calibration::Done);
    assert_eq!(after.source, ThresholdSource::Measured);
    assert_eq!(Some(after.below_bytes), after.measured.map(|cost| cost.threshold_bytes));
    assert_eq!(gate.held(), []);
    let status = server.status("disk");
    assert_eq!(
        (status.cached_bytes, status.requests.backend_reads()),
        (0, 0),
        "the reads bypass the pool"
    );
    assert!(status.internal.reads > 0 && status.internal.read_bytes > 0, "{:?}", status.internal);
    server.stop();
}

fn a_threshold_set_by_hand_wins_and_is_not_measured(engine: Engine) {
    let server = Server::start(engine);
    let gate = gate();
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    let off = gather(&server);
    assert_eq!((off.below_bytes, off.source), (0, ThresholdSource::Set));
    assert_eq!((off.calibration, off.measured), (Calibration::Unwanted, None));
    let cost = measured(&server, "disk", |_| true);
    let asked = gather(&server);
    assert_eq!((asked.below_bytes, asked.measured), (0, Some(cost)), "measured on request");
    set(&server, Auto::Set(512 * KIB));
    assert_eq!(gather(&server).below_bytes, 512 * KIB);
    set(&server, Auto::Auto);
    let auto = gather(&server);
    assert_eq!((auto.below_bytes, auto.source), (cost.threshold_bytes, ThresholdSource::Measured));

    server.runtime.volumes().remove("disk", |_| ()).unwrap();
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    set(&server, Auto::Auto);
    assert_eq!(gather(&server).calibration, Calibration::Waiting);
    set(&server, Auto::Set(0));
    let is_unwanted = || gather(&server).calibration == Calibration::Unwanted;
    wait_until("the measurement is dropped", PATIENCE, is_unwanted);
    assert_eq!(gather(&server).measured, None);
    server.stop();
}

fn a_disk_that_fails_reads_is_not_measured_and_served_as_before(engine: Engine) {
    let server = Server::start(engine);
    let disk = Arc::new(MemoryBackend::new(16 * MIB).unwrap());
    let rule = ErrorRule { kinds: Kinds::READ, ..ErrorRule::default() };
    let bad = Arc::new(ErrorLayer::new(disk, rule));
    add_auto(&server, Arc::clone(&bad) as _);
    let (offset, error) = loop {
        match failure(&server) {
            CalibrationFailure::Io { offset, error } => break (offset, error),
            // The machine was too loaded to see the error in time.
            CalibrationFailure::Slow { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((offset % 4096, error), (0, IoError::Io));
    let status = server.status("disk");
    let is_failed = matches!(status.gather.calibration, Calibration::Failed(_));
    assert!(is_failed && status.gather.source == ThresholdSource::Default, "{status:?}");
    assert_eq!((status.flush_failure, status.requests.errors), (None, 0));
    let mut client = server.client("disk");
    assert_eq!(client.write(0, &[7; 4096]), Ok(()));
    assert_eq!(client.flush(), Ok(()));
    assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]));
    bad.set_enabled(false);
    let cost = measured(&server, "disk", |_| true);
    bad.set_enabled(true);
    failure(&server);
    assert_eq!(gather(&server).measured, Some(cost), "the last result stays");
    drop(client);
    server.stop();
}

fn a_hanging_read_is_abandoned_and_delays_no_other_disk(engine: Engine) {
    let server = Server::start(engine);
    let gate = gate();
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    server.add_memory("other", 16 * MIB, Mode::WriteThrough);
    gate.close(Kinds::READ);
    assert!(matches!(failure(&server), CalibrationFailure::Slow { .. }));
    assert_eq!(gate.held().len(), 1);
    assert_eq!(failure(&server), CalibrationFailure::Hanging);
    assert_eq!(gate.held().len(), 1, "no other read begins on this disk");
    measured(&server, "other", |_| true);
    assert_eq!(server.client("disk").write(0, &[7; 4096]), Ok(()));
    gate.open();
    measured(&server, "disk", |_| true);
    server.stop();
}

fn no_read_begins_while_a_request_is_in_flight(engine: Engine) {
    let server = Server::start(engine);
    let gate = gate();
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    let mut client = server.client("disk");
    gate.close(Kinds::ALL);
    let cookie = client.send(NbdCommand::Write, 0, 0, 4096, &[7; 4096]);
    assert!(gate.wait_held(1, PATIENCE));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| measured(&server, "disk", |_| true));
        let is_waiting = || gather(&server).calibration == Calibration::Waiting;
        wait_until("the measurement waits", PATIENCE, is_waiting);
        std::thread::sleep(MOMENT);
        assert_eq!(gate.held().len(), 1, "only the write is in flight");
        gate.open();
        assert_eq!(client.wait(cookie).result, Ok(()));
        asked.join().unwrap();
    });
    drop(client);
    server.stop();
}

fn a_removal_waits_until_the_disk_is_closed(engine: Engine) {
    let server = Server::start(engine);
    let gate = gate();
    let weak = Arc::downgrade(&gate);
    server.add("disk", Arc::clone(&gate) as _, Mode::WriteThrough);
    gate.close(Kinds::READ);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.runtime.volumes().calibrate("disk"));
        assert!(gate.wait_held(1, PATIENCE));
        let removed = scope.spawn(|| server.runtime.volumes().remove("disk", |_| ()));
        let is_leaving =
            || server.runtime.status().unwrap().volumes.iter().all(|disk| disk.is_closed);
        wait_until("the volume is being removed", PATIENCE, is_leaving);
        std::thread::sleep(MOMENT);
        assert!(!removed.is_finished() || asked.is_finished(), "the disk is being read");
        gate.open();
        removed.join().unwrap().unwrap();
        let asked = asked.join().unwrap();
        // If the machine was so loaded that this took a second, the read has been abandoned.
        let is_slow = matches!(
            &asked,
            Err(VolumeError::Calibrate(CalibrateError::Failed {
                failure: CalibrationFailure::Slow { .. },
                ..
            }))
        );
        assert!(is_slow || matches!(asked, Err(VolumeError::Leaving(_))), "{asked:?}");
    });
    assert_eq!(gate.held(), []);
    drop(gate);
    assert_eq!(weak.strong_count(), 0, "the disk is still open");
    server.stop();
}

fn a_disk_too_small_for_a_measurement_is_reported(engine: Engine) {
    let server = Server::start(engine);
    server.add_memory("disk", 16 * KIB, Mode::WriteThrough);
    let error = server.runtime.volumes().calibrate("disk").unwrap_err().explained();
    let sentence = "the disk of volume 'disk' was not measured; the volume is served as before: \
                    fewer than 4 sizes could be read: ";
    assert!(error.starts_with(sentence), "{error}");
    assert!(matches!(server.runtime.volumes().calibrate("none"), Err(VolumeError::Unknown(_))));
    server.stop();
}
