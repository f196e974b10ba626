use super::*;
use forebay_runtime::IoCause;
use forebay_types::{ByteRange, IoError};

const SECOND: Duration = Duration::from_secs(1);

fn fine() -> VolumeCondition {
    VolumeCondition {
        name: "a".into(),
        disk: "/dev/a".into(),
        is_closed: false,
        half_added: false,
        flush_failure: None,
        stall: None,
        displaced: None,
        lost_sectors: 0,
        refused_lines: 0,
    }
}

fn stalled(seconds: u32) -> VolumeCondition {
    let stall = DiskStall {
        operation: "read",
        cause: IoCause::Demand,
        range: Some(ByteRange::new(0, 4096)),
        waited: SECOND * seconds,
        ios: 1,
    };
    VolumeCondition { stall: Some(stall), ..fine() }
}

#[test]
fn a_disk_that_does_not_answer_is_the_state_whatever_else_is_wrong() {
    let stalled = VolumeCondition {
        flush_failure: Some(IoError::Io),
        is_closed: true,
        refused_lines: 3,
        ..stalled(12)
    };
    let reason = "the disk has not answered a read for 12 s";
    assert_eq!(state_of(&stalled), (VolumeState::Stalled, Some(reason.into())));
    let half = VolumeCondition { half_added: true, ..stalled };
    assert_eq!(state_of(&half).0, VolumeState::Failing);
    assert_eq!(state_of(&fine()), (VolumeState::Serving, None));
    let refuses = VolumeCondition { refused_lines: 1, ..fine() };
    assert_eq!(state_of(&refuses).0, VolumeState::Failing);
}

#[test]
fn a_stall_is_logged_at_once_then_at_doubling_intervals_and_at_its_end() {
    let (mut log, start) = (ConditionLog::default(), Instant::now());
    assert_eq!(log.update(start, &[fine()]), []);
    let mut lines = Vec::new();
    for second in 5..100 {
        for event in log.update(start + SECOND * second, &[stalled(second)]) {
            lines.push((second, event));
        }
    }
    let changed = ConditionEvent::State {
        volume: "a".into(),
        from: VolumeState::Serving,
        to: VolumeState::Stalled,
        reason: Some("the disk has not answered a read for 5 s".into()),
    };
    assert_eq!(lines.remove(0), (5, changed));
    let is_first =
        |event: &ConditionEvent| matches!(event, ConditionEvent::Stall { is_first: true, .. });
    let seconds: Vec<_> = lines.iter().map(|(at, event)| (*at, is_first(event))).collect();
    assert_eq!(seconds, [(5, true), (10, false), (20, false), (40, false), (80, false)]);
    let ended = log.update(start + SECOND * 100, &[fine()]);
    assert!(
        matches!(&ended[0], ConditionEvent::State { to: VolumeState::Serving, .. }),
        "{ended:?}"
    );
    let answer =
        ConditionEvent::Answer { volume: "a".into(), disk: "/dev/a".into(), took: SECOND * 100 };
    assert_eq!(ended[1..], [answer]);
    assert_eq!(log.update(start + SECOND * 101, &[fine()]), []);
}

#[test]
fn a_volume_that_is_added_logs_nothing_and_one_that_fails_at_once_does() {
    let (mut log, now) = (ConditionLog::default(), Instant::now());
    let added = VolumeCondition { is_closed: true, ..fine() };
    assert_eq!(log.update(now, &[added]), []);
    assert_eq!(log.update(now, &[fine()]).len(), 1, "it is served now");
    assert_eq!(log.update(now, &[]), []);
    let failing = VolumeCondition { refused_lines: 1, ..fine() };
    assert_eq!(log.update(now, std::slice::from_ref(&failing)).len(), 1);
    assert_eq!(log.update(now, &[failing]), []);
}
