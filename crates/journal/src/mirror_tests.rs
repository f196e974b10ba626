use super::*;
use forebay_format::journal::{GenerationStart, Geometry};

const JOURNAL: JournalId = JournalId([1; 16]);
const DRAWN: [u64; 2] = [90, 91];

fn superblock(sequence: u64, own: u64, current: [u64; 2]) -> SuperblockSeen {
    let size_bytes = 1 << 30;
    SuperblockSeen::Journal(Box::new(Superblock {
        kind: LogKind::Journal,
        journal: JOURNAL,
        sequence,
        size_bytes,
        geometry: Geometry::for_size(size_bytes).unwrap(),
        is_clean: false,
        first_segment: 0,
        starts: vec![GenerationStart { generation: 1, batch: 0, segment: 0 }],
        next_volume: 0,
        volumes: Vec::new(),
        members: Members { own, current },
        beat_ms: 0,
    }))
}

/// The new member numbers, given the members recorded in the state directory.
fn chosen(seen: [SuperblockSeen; 2], on_record: &[u64]) -> Result<Option<[u64; 2]>, RecoverError> {
    let is_on_record = |_, number| on_record.contains(&number);
    let choice = choose(seen, DRAWN, &is_on_record, false)?;
    Ok(choice.map(|choice| {
        for at in 0..2 {
            assert!(choice.in_sync[at] || choice.numbers[at] == 0);
        }
        choice.numbers
    }))
}

const STALE: [Result<Option<[u64; 2]>, RecoverError>; 2] = [
    Err(RecoverError::MayBeStale { journal: JOURNAL, device: 0 }),
    Err(RecoverError::MayBeStale { journal: JOURNAL, device: 1 }),
];

#[test]
fn two_devices_that_list_each_other_are_in_sync() {
    for (a, b) in [(7, 7), (7, 8), (8, 7)] {
        let seen = [superblock(a, 1, [1, 2]), superblock(b, 2, [1, 2])];
        assert_eq!(chosen(seen, &[]), Ok(Some([1, 2])), "one superblock may be older by one");
    }
    let swapped = [superblock(7, 2, [1, 2]), superblock(7, 1, [1, 2])];
    assert_eq!(chosen(swapped, &[]), Ok(Some([2, 1])), "numbers identify devices, order does not");
    let late = [superblock(9, 1, [1, 2]), superblock(7, 2, [1, 2])];
    assert_eq!(chosen(late, &[]), Ok(Some([90, 0])), "the late device lacks a superblock");
}

#[test]
fn stale_device_is_never_in_sync() {
    let a = || superblock(9, 1, [1, 0]);
    for sequence in 0..9 {
        let seen = [a(), superblock(sequence, 2, [1, 2])];
        assert_eq!(chosen(seen, &[1, 2]), Ok(Some([90, 0])));
    }
    let seen = [superblock(8, 1, [1, 2]), superblock(9, 2, [0, 2])];
    assert_eq!(chosen(seen, &[]), Ok(Some([0, 91])));
}

#[test]
fn single_device_is_accepted_only_if_it_is_on_record() {
    for (other, at) in
        [(SuperblockSeen::Missing, 0), (SuperblockSeen::Blank, 1), (SuperblockSeen::Damaged, 0)]
    {
        let pair = |seen: SuperblockSeen, other: SuperblockSeen| {
            if at == 0 { [seen, other] } else { [other, seen] }
        };
        let both = || pair(superblock(9, 5, [5, 6]), other.clone());
        let expected = if at == 0 { [90, 0] } else { [0, 91] };
        assert_eq!(chosen(both(), &[]), STALE[at]);
        assert_eq!(chosen(both(), &[6]), STALE[at], "the other device continued");
        assert_eq!(chosen(both(), &[5, 6]), Ok(Some(expected)), "neither continued alone");
        assert_eq!(chosen(both(), &[5]), Ok(Some(expected)));
        let alone = || pair(superblock(9, 5, [5, 0]), other.clone());
        assert_eq!(chosen(alone(), &[5]), Ok(Some(expected)));
        assert_eq!(chosen(alone(), &[]), STALE[at], "it may lack a newer member list");
        let accepted = choose(both(), DRAWN, &|_, _| false, true).unwrap().unwrap();
        assert_eq!(accepted.numbers[at], DRAWN[at], "a new history begins");
    }
}

#[test]
fn plain_journal_can_gain_a_mirror() {
    let plain = || superblock(9, 0, [0, 0]);
    assert_eq!(chosen([plain(), SuperblockSeen::Missing], &[]), Ok(Some([0, 0])));
    assert_eq!(chosen([plain(), SuperblockSeen::Blank], &[]), Ok(Some([90, 0])));
    assert_eq!(chosen([SuperblockSeen::Blank, plain()], &[]), Ok(Some([0, 91])));
    assert_eq!(chosen([SuperblockSeen::Missing, plain()], &[]), Ok(Some([0, 91])));
}

#[test]
fn rejects_devices_that_do_not_belong_together() {
    let split = Err(RecoverError::Split { journal: JOURNAL });
    let alone = |sequence, own| superblock(sequence, own, [own, 0]);
    for on_record in [&[][..], &[1, 2]] {
        assert_eq!(chosen([alone(9, 1), alone(12, 2)], on_record), split, "split brain");
        assert_eq!(chosen([alone(9, 1), superblock(9, 2, [1, 2])], on_record), split);
    }
    let first = chosen([alone(9, 1), alone(12, 2)], &[1]);
    assert_eq!(first, Ok(Some([90, 0])), "the record names the device that continued");
    // A device and its copy.
    assert_eq!(chosen([superblock(9, 0, [0, 0]), superblock(9, 0, [0, 0])], &[]), split);
    assert_eq!(chosen([superblock(9, 1, [1, 2]), superblock(9, 1, [1, 2])], &[]), split);
    assert_eq!(chosen([superblock(9, 0, [0, 0]), superblock(9, 1, [1, 2])], &[1]), split);
    let mut other = superblock(9, 2, [1, 2]);
    if let SuperblockSeen::Journal(other) = &mut other {
        other.journal = JournalId([2; 16]);
    }
    let journals = [JOURNAL, JournalId([2; 16])];
    let two = Err(RecoverError::TwoJournals { journals });
    assert_eq!(chosen([superblock(9, 1, [1, 2]), other], &[1]), two);
    assert_eq!(
        chosen([SuperblockSeen::Missing, SuperblockSeen::Blank], &[]),
        Err(RecoverError::Missing)
    );
    assert_eq!(
        chosen([SuperblockSeen::Missing, SuperblockSeen::Missing], &[]),
        Err(RecoverError::Missing)
    );
    assert_eq!(
        chosen([SuperblockSeen::Blank, SuperblockSeen::Blank], &[]),
        Ok(None),
        "a journal may be created"
    );
}
