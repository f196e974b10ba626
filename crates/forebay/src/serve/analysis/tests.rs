//! Tests of the phases, over restarts, with a clock of their own.

use super::*;
use forebay_api::AnalyzedVolume;
use forebay_runtime::{ArmTimes, VolumeStatistics};
use forebay_types::VolumeId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A machine with three volumes: `disk`, `idle` without requests, and, in bypass, `past`. Each
/// second, 10 reads of `disk` are served and 1 is held out; a thousand times as many if it is
/// `busy`. They are compared while regions of it are held out.
#[derive(Default)]
struct Fake {
    seconds: Cell<f64>,
    compared_seconds: Cell<f64>,
    busy: Cell<bool>,
    hold_outs: RefCell<BTreeMap<String, HoldOut>>,
    identity: Cell<u8>,
}

impl Machine for Fake {
    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.get())
    }

    fn unix_seconds(&self) -> u64 {
        1_772_283_909 + self.seconds.get() as u64
    }

    fn cpu_seconds(&self) -> f64 {
        self.seconds.get() / 4.0
    }

    fn random(&self) -> u32 {
        self.seconds.get().to_bits() as u32 ^ (self.seconds.get().to_bits() >> 32) as u32
    }

    fn volumes(&self) -> Vec<(String, bool)> {
        vec![("disk".into(), true), ("idle".into(), true), ("past".into(), false)]
    }

    fn statistics(&self) -> Vec<NamedStatistics> {
        let seconds = self.seconds.get() as u64;
        let mut statistics = VolumeStatistics::default();
        statistics.requests.read_hits = 10 * seconds;
        statistics.requests.read_misses = seconds;
        let mut arms = ArmTimes::default();
        let compared = self.compared_seconds.get() as u64;
        arms.served_reads.counts[3] = 10 * compared;
        arms.served_reads.sums_ns[3] = compared * 1_000_000;
        arms.held_reads.counts[3] = compared;
        arms.held_reads.sums_ns[3] = compared * 8_000_000;
        let named = |id: u16, name: &str, arms: ArmTimes| NamedStatistics {
            id: VolumeId(id),
            name: name.into(),
            identity: [self.identity.get(); 32],
            disk_in_flight: 0,
            dirty_lines: 0,
            cached_lines: 0,
            statistics: statistics.clone(),
            arms,
        };
        let none = ArmTimes::default();
        vec![named(0, "disk", arms), named(1, "idle", none), named(2, "past", none)]
    }

    fn set_hold_out(&self, volume: &str, hold_out: HoldOut) {
        self.hold_outs.borrow_mut().insert(volume.to_owned(), hold_out);
    }
}

impl Fake {
    /// Lets time pass in steps of the thread.
    fn pass(&self, seconds: f64, analyses: &Analyses) {
        for _ in 0..(seconds * 4.0) as usize {
            self.seconds.set(self.seconds.get() + 0.25);
            if self.hold_outs.borrow().get("disk").is_some_and(|one| !one.is_none()) {
                let load = if self.busy.get() { 1000.0 } else { 1.0 };
                self.compared_seconds.set(self.compared_seconds.get() + 0.25 * load);
            }
            analyses.advance(self);
        }
    }

    fn hold_out(&self) -> HoldOut {
        self.hold_outs.borrow()["disk"]
    }
}

fn request(measure: u64, learn: u64, accelerate: u64) -> AnalysisRequest {
    AnalysisRequest {
        volumes: vec!["disk".into()],
        measure_seconds: Some(measure),
        learn_seconds: learn,
        accelerate_seconds: accelerate,
        ..AnalysisRequest::default()
    }
}

fn subject() -> Option<AnalysisSubject> {
    let named = |name: &str| AnalyzedVolume { name: name.into(), ..AnalyzedVolume::default() };
    let volumes = ["disk", "idle", "past"].map(named).to_vec();
    Some(AnalysisSubject { host: "here".into(), volumes, ..AnalysisSubject::default() })
}

fn open(directory: &tempfile::TempDir) -> Analyses {
    Analyses::open(directory.path(), 1_772_300_000)
}

fn seconds_of(analysis: &Analysis, phase: AnalysisPhase) -> f64 {
    let batches = analysis.batches.iter().filter(|batch| batch.phase == phase);
    batches.map(|batch| batch.seconds).sum()
}

#[test]
fn the_phases_follow_each_other_and_nothing_is_held_out_afterwards() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    assert_eq!(analyses.status(&fake).state, AnalysisState::None);
    let status = analyses.start(request(10, 20, 60), subject(), &fake).unwrap();
    assert_eq!((status.phase, fake.hold_out()), (Some(AnalysisPhase::Measure), HoldOut::ALL));
    assert_eq!((status.request.volumes, status.remaining_seconds), (vec!["disk".into()], 90.0));
    let judged = status.subject.unwrap();
    assert_eq!((&*judged.host, judged.volumes.len()), ("here", 1), "of the analyzed volume only");
    fake.pass(5.0, &analyses);
    assert_eq!(fake.hold_out(), HoldOut::ALL);
    assert_eq!(analyses.status(&fake).remaining_seconds, 85.0);
    fake.pass(6.0, &analyses);
    assert_eq!(analyses.status(&fake).phase, Some(AnalysisPhase::Learn));
    let mut seen = vec![fake.hold_out()];
    fake.pass(20.0, &analyses);
    for _ in 0..10 {
        assert_eq!(analyses.status(&fake).phase, Some(AnalysisPhase::Accelerate));
        seen.push(fake.hold_out());
        fake.pass(2.0, &analyses);
    }
    let held = |one: &HoldOut| (0..100_000).filter(|&region| one.holds(region)).count();
    assert!(seen.iter().all(|one| (800..1200).contains(&held(one))), "one percent");
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "other regions each time");
    fake.pass(60.0, &analyses);
    let result = analyses.result(&fake);
    assert_eq!((result.status.state, result.status.phase), (AnalysisState::Complete, None));
    assert_eq!(fake.hold_out(), HoldOut::NONE);
    for (phase, seconds) in AnalysisPhase::ALL.into_iter().zip([10.0, 20.0, 60.0]) {
        let done = seconds_of(&result, phase);
        assert!((seconds - 0.2..seconds + 15.0).contains(&done), "{phase}: {done}");
    }
    assert!(!fake.hold_outs.borrow().contains_key("past"), "it is in bypass");
    let last = result.batches.last().unwrap();
    let volume = &last.volumes[0];
    assert!((last.cpu_seconds - last.seconds / 4.0).abs() < 1e-9);
    assert_eq!(volume.reads, volume.read_hits * 11 / 10);
    assert_eq!(volume.served_reads[0].requests, volume.read_hits);
    assert_eq!(volume.held_reads[0].up_to_bytes, 4096);
    // The result is still there after a restart.
    assert_eq!(open(&directory).result(&fake), result);
}

#[test]
fn a_busy_volume_is_held_out_for_a_part_of_the_time_and_a_quiet_one_always() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    analyses.start(request(240, 960, 1920), subject(), &fake).unwrap();
    let parts = |phase| {
        let batches = analyses.result(&fake).batches.into_iter();
        let part =
            |batch: AnalysisBatch| batch.volumes[0].compared_seconds.unwrap() / batch.seconds;
        batches.filter(|batch| batch.phase == phase).map(part).collect::<Vec<_>>()
    };
    fake.pass(240.0 + 960.0, &analyses);
    for phase in [AnalysisPhase::Measure, AnalysisPhase::Learn] {
        assert!(parts(phase).iter().all(|&part| part == 1.0), "{:?}", parts(phase));
    }
    fake.busy.set(true);
    fake.pass(960.0, &analyses);
    // 11,000 requests are 110 held-out ones per second, 4,400 in the 40 s of an interval.
    let busy = parts(AnalysisPhase::Accelerate);
    let mean = busy[1..].iter().sum::<f64>() / (busy.len() - 1) as f64;
    assert!(busy[0] == 1.0 && (0.89..0.93).contains(&mean), "{mean} {busy:?}");
    assert!(busy[1..].iter().all(|&part| part < 1.0), "{busy:?}");
    fake.busy.set(false);
    fake.pass(960.0, &analyses);
    let quiet = parts(AnalysisPhase::Accelerate).split_off(busy.len() + 1);
    assert!(quiet.iter().all(|&part| part == 1.0), "{quiet:?}");
    assert_eq!(fake.hold_out(), HoldOut::NONE);
}

#[test]
fn without_a_length_each_volume_is_measured_until_it_has_enough_requests() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    let off = || analyses.cache_off(&fake).map(|off| (off.names, off.off.seconds_left));
    fake.busy.set(true);
    analyses.start(AnalysisRequest::default(), subject(), &fake).unwrap();
    assert_eq!(off(), Some((vec!["disk".into(), "idle".into()], 3600)));
    // Seven intervals of 75 s are too few.
    fake.pass(7.0 * 75.0 + 10.0, &analyses);
    assert_eq!(off(), Some((vec!["disk".into(), "idle".into()], 3600 - 535)));
    assert_eq!(fake.hold_out(), HoldOut::ALL);
    fake.pass(75.0, &analyses);
    assert_eq!(off(), Some((vec!["idle".into()], 3600 - 610)));
    assert_eq!(fake.hold_out(), HoldOut::NONE, "its cache is on");
    fake.pass(2950.0, &analyses);
    assert_eq!(off(), Some((vec!["idle".into()], 40)));
    let result = analyses.result(&fake);
    let has = |name: &str| {
        let batches = result.batches.iter();
        batches.filter(|batch| batch.volumes.iter().any(|it| it.name == name)).count()
    };
    assert_eq!((has("disk"), has("idle")), (8, 47));
    fake.pass(50.0, &analyses);
    assert_eq!((analyses.status(&fake).phase, off()), (Some(AnalysisPhase::Learn), None));
    assert!(!fake.hold_out().is_none(), "a share of its regions is held out");
}

#[test]
fn the_phase_without_the_cache_ends_early_only_if_no_length_is_asked_for() {
    for (measure_seconds, ends) in [(None, true), (Some(3600), false)] {
        let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
        let analyses = open(&directory);
        fake.busy.set(true);
        let request = AnalysisRequest { measure_seconds, ..request(1, 10, 10) };
        analyses.start(request, subject(), &fake).unwrap();
        fake.pass(601.0, &analyses);
        let status = analyses.status(&fake);
        let expected = if ends { AnalysisPhase::Learn } else { AnalysisPhase::Measure };
        assert_eq!(status.phase, Some(expected));
        assert_eq!(status.remaining_seconds < 20.0, ends, "{status:?}");
        assert_eq!(open(&directory).status(&fake).phase, Some(expected), "after a restart");
    }
}

#[test]
fn an_analysis_interrupted_in_any_phase_continues_there_and_says_so() {
    for (at, phase) in [
        (5.0, AnalysisPhase::Measure),
        (17.0, AnalysisPhase::Learn),
        (40.0, AnalysisPhase::Accelerate),
    ] {
        let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
        let analyses = open(&directory);
        analyses.start(request(10, 10, 40), subject(), &fake).unwrap();
        fake.pass(at, &analyses);
        let before = analyses.result(&fake);
        assert_eq!(before.status.phase, Some(phase));
        drop(analyses);
        // The next process counts from zero, and so does its clock.
        let fake = Fake::default();
        let analyses = open(&directory);
        let after = analyses.result(&fake);
        assert_eq!((after.status.phase, &after.batches), (Some(phase), &before.batches));
        let [interruption] = &after.status.interruptions[..] else { panic!("{after:?}") };
        assert_eq!(interruption.phase, phase);
        fake.pass(1.0, &analyses);
        let is_all = fake.hold_out() == HoldOut::ALL;
        assert_eq!(is_all, phase == AnalysisPhase::Measure);
        fake.pass(90.0, &analyses);
        let result = analyses.result(&fake);
        assert_eq!(result.status.state, AnalysisState::Complete);
        assert_eq!(result.status.interruptions.len(), 1);
        assert!(seconds_of(&result, AnalysisPhase::Accelerate) > 39.8);
        assert_eq!(open(&directory).result(&fake), result, "it is complete, not interrupted");
    }
}

#[test]
fn a_cut_line_costs_its_interval_only() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    analyses.start(request(10, 10, 40), subject(), &fake).unwrap();
    fake.pass(15.0, &analyses);
    let before = analyses.result(&fake);
    let path = directory.path().join("analysis.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 9]).unwrap();
    let fake = Fake::default();
    let analyses = open(&directory);
    let after = analyses.result(&fake);
    assert_eq!(after.batches, before.batches[..before.batches.len() - 1]);
    fake.pass(90.0, &analyses);
    let result = analyses.result(&fake);
    assert_eq!(result.status.state, AnalysisState::Complete);
    assert_eq!(open(&directory).result(&fake), result, "what follows the cut line is read");
    for damaged in ["", "\n", "{}\n", "not json\n", "{\"batch\":{}}\n", "\u{0}\u{0}"] {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(open(&directory).status(&fake).state, AnalysisState::None, "{damaged:?}");
    }
}

#[test]
fn an_analysis_is_stopped_and_replaced_but_never_doubled() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    assert!(analyses.stop(&fake).unwrap_err().message.contains("no analysis"));
    analyses.start(request(10, 10, 40), subject(), &fake).unwrap();
    let refused = analyses.start(request(1, 1, 1), subject(), &fake).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    fake.pass(3.0, &analyses);
    let stopped = analyses.stop(&fake).unwrap();
    assert_eq!((stopped.state, fake.hold_out()), (AnalysisState::Stopped, HoldOut::NONE));
    fake.pass(60.0, &analyses);
    assert_eq!(fake.hold_out(), HoldOut::NONE);
    assert_eq!(open(&directory).status(&fake), analyses.status(&fake));
    analyses.start(request(1, 1, 1), subject(), &fake).unwrap();
    assert_eq!(analyses.status(&fake).batches, 0);
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    let named = |name: &str| AnalysisRequest { volumes: vec![name.into()], ..request(1, 1, 1) };
    let percent = |hold_out_percent| AnalysisRequest { hold_out_percent, ..request(1, 1, 1) };
    for (bad, reason) in [
        (request(0, 1, 1), "'measure'"),
        (request(1, 700_000, 1), "'learn'"),
        (request(1, 1, u64::MAX), "'accelerate'"),
        (percent(0), "0 percent"),
        (percent(51), "51 percent"),
        (named("nosuch"), "nosuch"),
        (named("past"), "bypass"),
    ] {
        let refused = analyses.start(bad, subject(), &fake).unwrap_err();
        assert!(refused.message.contains(reason), "{refused:?}");
    }
    assert_eq!(analyses.status(&fake).state, AnalysisState::None);
    assert!(fake.hold_outs.borrow().is_empty());
}

#[test]
fn without_space_a_start_is_refused_and_a_running_analysis_goes_on() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let missing = directory.path().join("missing");
    let analyses = Analyses::open(&missing, 0);
    let refused = analyses.start(request(1, 1, 1), subject(), &fake).unwrap_err();
    assert!(refused.message.contains("cannot be kept"), "{refused:?}");
    std::fs::create_dir(&missing).unwrap();
    analyses.start(request(10, 10, 40), subject(), &fake).unwrap();
    std::fs::rename(&missing, directory.path().join("away")).unwrap();
    fake.pass(5.0, &analyses);
    let status = analyses.status(&fake);
    assert!(status.batches > 3 && status.problem.is_some(), "{status:?}");
    std::fs::rename(directory.path().join("away"), &missing).unwrap();
    fake.pass(2.0, &analyses);
    assert_eq!(analyses.status(&fake).problem, None);
    let kept = Analyses::open(&missing, 0).result(&fake);
    assert_eq!(kept.batches, analyses.result(&fake).batches, "nothing is missing, or twice");
}

#[test]
fn a_volume_that_was_replaced_is_left_out_of_its_interval() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    let analyses = open(&directory);
    analyses.start(request(4, 4, 4), subject(), &fake).unwrap();
    fake.identity.set(1);
    fake.pass(2.5, &analyses);
    let batches = analyses.result(&fake).batches;
    assert_eq!(batches[0].volumes, []);
    assert_eq!(batches[1].volumes.len(), 1);
}
