//! What operators say of disks, and what disks say of themselves.

use super::*;
use crate::{VolumeChange, parse_volume_spec};
use forebay_types::Fault;

const KIB: u64 = 1 << 10;
const PLENTY: u64 = 1 << 30;

/// An array with stripes of 112 KiB, seen from a partition.
const ARRAY: DiskGeometry = DiskGeometry {
    stripe_bytes: 112 * KIB,
    chunk_bytes: 16 * KIB,
    offset_bytes: 96 * KIB,
    offset_is_guess: false,
    optimal_bytes: 112 * KIB,
    held_bytes: 0,
    rotational: Some(true),
};
const UNKNOWN: DiskGeometry = DiskGeometry {
    stripe_bytes: 0,
    chunk_bytes: 0,
    offset_bytes: 0,
    offset_is_guess: false,
    optimal_bytes: 0,
    held_bytes: 0,
    rotational: None,
};

fn said(settings: &str) -> GeometrySpec {
    parse_volume_spec(&format!("v=/x,{settings}")).unwrap().geometry
}

/// Width, depth and beginning of stripes, in KiB.
fn stripes(found: &ResolvedGeometry) -> (u64, u64, u64) {
    let DiskGeometry { stripe_bytes, chunk_bytes, offset_bytes, .. } = found.geometry;
    (stripe_bytes / KIB, chunk_bytes / KIB, offset_bytes / KIB)
}

#[test]
fn what_contradicts_itself_is_refused_with_a_remedy() {
    for (settings, sentence) in [
        ("stripe=0", "stripe=0 is no width: write stripe=none for no stripes"),
        ("stripe=1000", "stripe=1000B is no multiple of 512 bytes: write a size in whole sectors"),
        ("chunk=700", "chunk=700B is no multiple of 512 bytes"),
        ("chunk=none", "chunk='none' is no size: write it like 64KiB or 1.5MiB, or auto"),
        ("stripe-offset=1", "stripe-offset=1B is no multiple of 512 bytes"),
        ("stripe=112KiB,chunk=64KiB", "stripe=112KiB is no multiple of chunk=64KiB: a stripe is "),
        ("stripe=2GiB", "stripe=2GiB is more than any disk has: write a size of at most 1GiB"),
        ("stripe=99999999999T", "stripe='99999999999T' is no size"),
        ("stripe=none,chunk=4KiB", "stripe=none, and chunk or stripe-offset is set: leave those"),
        ("stripe=none,stripe-offset=0", "stripe=none, and chunk or stripe-offset is set"),
        (
            "stripe=112KiB,stripe-offset=1MiB",
            "stripe-offset=1MiB is not below stripe=112KiB: write stripe-offset=16KiB, which",
        ),
    ] {
        let error = parse_volume_spec(&format!("v=/x,{settings}")).unwrap_err().explained();
        assert!(error.starts_with(&format!("volume 'v': {sentence}")), "{settings}: {error}");
    }
}

#[test]
fn what_nobody_says_is_unknown_and_what_the_disk_says_is_taken() {
    let nothing = GeometrySpec::default();
    assert_eq!(nothing.resolve(&UNKNOWN, PLENTY), ResolvedGeometry::default());
    let found = nothing.resolve(&ARRAY, PLENTY);
    let sources =
        [found.stripe_source, found.chunk_source, found.offset_source, found.rotational_source];
    assert_eq!(sources, [GeometrySource::Device; 4]);
    assert_eq!((found.geometry, found.used(), found.notes), (ARRAY, ARRAY, vec![]));
}

#[test]
fn what_is_said_by_hand_wins_and_the_contradiction_is_named() {
    let found = said("stripe=96KiB,rotational=no").resolve(&ARRAY, PLENTY);
    assert_eq!(stripes(&found), (96, 0, 0));
    assert_eq!((found.geometry.rotational, found.geometry.optimal_bytes), (Some(false), 96 * KIB));
    assert_eq!(
        (found.stripe_source, found.chunk_source),
        (GeometrySource::Hand, Default::default())
    );
    assert_eq!(
        found.notes,
        [
            "its disk says stripe=112KiB, and stripe=96KiB is set by hand, which is taken: leave \
             it out if the disk is right",
            "its disk says rotational=yes, and rotational=no is set by hand, which is taken: leave \
             it out if the disk is right",
        ]
    );
    let found = said("chunk=8KiB,stripe-offset=0").resolve(&ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.stripe_source), ((112, 8, 0), GeometrySource::Device));
    let [chunk, offset] = &found.notes[..] else { panic!("{:?}", found.notes) };
    assert!(chunk.starts_with("its disk says chunk=16KiB, and chunk=8KiB is set"), "{chunk}");
    assert!(offset.starts_with("its disk says stripe-offset=96KiB, and "), "{offset}");
}

#[test]
fn who_agrees_with_the_disk_is_not_warned() {
    let settings = "stripe=112KiB,chunk=16KiB,stripe-offset=96KiB,rotational=yes";
    let found = said(settings).resolve(&ARRAY, PLENTY);
    assert_eq!((found.geometry, found.notes), (ARRAY, vec![]));
    // The same stripes begin where the disk says that they do.
    let found = said("stripe=112KiB").resolve(&ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.offset_source), ((112, 16, 96), GeometrySource::Device));
    // No stripes are a choice, and nothing that a disk could be wrong about.
    let found = said("stripe=none").resolve(&ARRAY, PLENTY);
    assert_eq!((found.geometry, found.notes), (ARRAY.without_stripes(), vec![]));
    assert_eq!(found.stripe_source, GeometrySource::Hand);
    let found = said("stripe=1MiB,chunk=64KiB,stripe-offset=512").resolve(&UNKNOWN, PLENTY);
    assert_eq!((found.geometry.offset_bytes, found.notes), (512, vec![]));
}

#[test]
fn a_guess_is_named_until_it_is_set_by_hand() {
    let guess = DiskGeometry { offset_is_guess: true, offset_bytes: 512, ..ARRAY };
    let found = GeometrySpec::default().resolve(&guess, PLENTY);
    let sentence = "where its stripes begin is not known and taken to be 512B: set stripe-offset";
    assert_eq!(found.notes, [sentence]);
    assert_eq!(found.offset_source, GeometrySource::Unknown);
    let found = said("stripe-offset=1MiB").resolve(&guess, PLENTY);
    assert_eq!((stripes(&found), &found.notes[..]), ((112, 16, 16), &[][..]));
    assert!(!found.geometry.offset_is_guess);
    assert!(said("stripe=none").resolve(&guess, PLENTY).notes.is_empty());
}

#[test]
fn what_has_no_stripes_to_be_of_is_named() {
    let found = said("chunk=64KiB,stripe-offset=4KiB").resolve(&UNKNOWN, PLENTY);
    assert_eq!((stripes(&found), found.chunk_source), ((0, 0, 0), GeometrySource::Unknown));
    let [chunk, offset] = &found.notes[..] else { panic!("{:?}", found.notes) };
    assert!(chunk.starts_with("chunk is set by hand, and no stripes of its disk are"), "{chunk}");
    assert!(offset.starts_with("stripe-offset is set by hand, and no stripes"), "{offset}");
    let found = said("chunk=64KiB").resolve(&ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.chunk_source), ((112, 16, 96), GeometrySource::Device));
    assert!(found.notes[0].starts_with("chunk=64KiB does not divide the stripe of its disk, 112"));
}

#[test]
fn a_stripe_that_can_not_be_dirty_as_a_whole_is_not_used() {
    let found = GeometrySpec::default().resolve(&ARRAY, 112 * KIB);
    assert!(!found.is_stripe_too_large && found.notes.is_empty());
    let found = GeometrySpec::default().resolve(&ARRAY, 112 * KIB - 4096);
    assert!(found.is_stripe_too_large);
    assert_eq!((found.geometry, found.used()), (ARRAY, ARRAY.without_stripes()));
    assert_eq!(
        found.notes,
        ["a stripe of 112KiB is larger than what may be dirty, 108KiB: writes are not gathered \
          into stripes; give more memory, or set stripe=none"]
    );
}

#[test]
fn a_served_volume_keeps_its_geometry() {
    let spec = parse_volume_spec("v=/x,stripe=112KiB").unwrap();
    let change = VolumeChange::parse(["stripe=auto"]).unwrap();
    assert!(change.is_of_what_stays());
    let error = spec.with(&change).unwrap_err();
    assert_eq!(error.mistake(), Mistake::Served);
    let sentence = "volume 'v': stripe can't change from 112KiB to auto while the volume is served";
    assert!(error.explained().starts_with(sentence), "{error}");
    // A new one may say that it is as the disk says.
    assert_eq!(parse_volume_spec("v=/x,stripe=auto,chunk=auto").unwrap().to_string(), "v=/x");
}
