//! Tests of geometry settings against the values that disks report.

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
    stripe_cache_bytes: 0,
    rotational: Some(true),
};
const UNKNOWN: DiskGeometry = DiskGeometry {
    stripe_bytes: 0,
    chunk_bytes: 0,
    offset_bytes: 0,
    offset_is_guess: false,
    optimal_bytes: 0,
    stripe_cache_bytes: 0,
    rotational: None,
};

/// The geometry of a disk with these settings, which may be empty.
fn resolved(settings: &str, device: &DiskGeometry, stripe_bytes_max: u64) -> ResolvedGeometry {
    let comma = if settings.is_empty() { "" } else { "," };
    let spec = parse_volume_spec(&format!("v=/x{comma}{settings}")).unwrap();
    ResolvedGeometry::new(&spec.config, device, stripe_bytes_max)
}

/// Stripe width, chunk and offset, in KiB.
fn stripes(found: &ResolvedGeometry) -> (u64, u64, u64) {
    let DiskGeometry { stripe_bytes, chunk_bytes, offset_bytes, .. } = found.geometry;
    (stripe_bytes / KIB, chunk_bytes / KIB, offset_bytes / KIB)
}

#[test]
fn inconsistent_settings_are_refused_with_a_remedy() {
    for (settings, sentence) in [
        ("stripe=0", "stripe=0 is not a stripe width: write stripe=none for no stripes"),
        ("stripe=1000", "stripe=1000B is not a multiple of 512 bytes: write a size in whole"),
        ("chunk=700", "chunk=700B is not a multiple of 512 bytes"),
        ("chunk=none", "chunk='none' is not a size: write it like 64KiB or 1.5MiB, or auto"),
        ("stripe-offset=1", "stripe-offset=1B is not a multiple of 512 bytes"),
        ("stripe=112KiB,chunk=64KiB", "stripe=112KiB is not a multiple of chunk=64KiB: a stripe"),
        ("stripe=2GiB", "stripe=2GiB is more than the maximum: write a size of at most 1GiB"),
        ("stripe=99999999999T", "stripe='99999999999T' is not a size"),
        ("stripe=none,chunk=4KiB", "stripe=none, and chunk or stripe-offset is set: leave them"),
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
fn without_settings_the_reported_values_apply() {
    assert_eq!(resolved("", &UNKNOWN, PLENTY), ResolvedGeometry::default());
    let found = resolved("", &ARRAY, PLENTY);
    let sources =
        [found.stripe_source, found.chunk_source, found.offset_source, found.rotational_source];
    assert_eq!(sources, [GeometrySource::Device; 4]);
    assert_eq!((found.geometry, found.used(), found.notes), (ARRAY, ARRAY, vec![]));
}

#[test]
fn a_setting_overrides_the_disk_and_a_note_shows_the_contradiction() {
    let found = resolved("stripe=96KiB,rotational=no", &ARRAY, PLENTY);
    assert_eq!(stripes(&found), (96, 0, 0));
    assert_eq!((found.geometry.rotational, found.geometry.optimal_bytes), (Some(false), 96 * KIB));
    assert_eq!(
        (found.stripe_source, found.chunk_source),
        (GeometrySource::Hand, Default::default())
    );
    assert_eq!(
        found.notes,
        [
            "the disk reports stripe=112KiB, but stripe=96KiB is set by hand and takes effect: \
             leave it out if the disk is right",
            "the disk reports rotational=yes, but rotational=no is set by hand and takes effect: \
             leave it out if the disk is right",
        ]
    );
    let found = resolved("chunk=8KiB,stripe-offset=0", &ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.stripe_source), ((112, 8, 0), GeometrySource::Device));
    let [chunk, offset] = &found.notes[..] else { panic!("{:?}", found.notes) };
    assert!(chunk.starts_with("the disk reports chunk=16KiB, but chunk=8KiB is set"), "{chunk}");
    assert!(offset.starts_with("the disk reports stripe-offset=96KiB, but "), "{offset}");
}

#[test]
fn settings_without_a_contradiction_add_no_note() {
    let settings = "stripe=112KiB,chunk=16KiB,stripe-offset=96KiB,rotational=yes";
    let found = resolved(settings, &ARRAY, PLENTY);
    assert_eq!((found.geometry, found.notes), (ARRAY, vec![]));
    // Stripes of the reported width keep the reported offset.
    let found = resolved("stripe=112KiB", &ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.offset_source), ((112, 16, 96), GeometrySource::Device));
    // `stripe=none` is a choice of the operator, not a contradiction.
    let found = resolved("stripe=none", &ARRAY, PLENTY);
    assert_eq!((found.geometry, found.notes), (ARRAY.without_stripes(), vec![]));
    assert_eq!(found.stripe_source, GeometrySource::Hand);
    let found = resolved("stripe=1MiB,chunk=64KiB,stripe-offset=512", &UNKNOWN, PLENTY);
    assert_eq!((found.geometry.offset_bytes, found.notes), (512, vec![]));
}

#[test]
fn a_guessed_offset_is_noted_until_it_is_set() {
    let guess = DiskGeometry { offset_is_guess: true, offset_bytes: 512, ..ARRAY };
    let found = resolved("", &guess, PLENTY);
    let sentence =
        "the stripe offset of the disk is unknown and assumed to be 512B: set stripe-offset";
    assert_eq!(found.notes, [sentence]);
    assert_eq!(found.offset_source, GeometrySource::Unknown);
    let found = resolved("stripe-offset=1MiB", &guess, PLENTY);
    assert_eq!((stripes(&found), &found.notes[..]), ((112, 16, 16), &[][..]));
    assert!(!found.geometry.offset_is_guess);
    assert!(resolved("stripe=none", &guess, PLENTY).notes.is_empty());
}

#[test]
fn a_chunk_or_offset_without_stripes_is_noted() {
    let found = resolved("chunk=64KiB,stripe-offset=4KiB", &UNKNOWN, PLENTY);
    assert_eq!((stripes(&found), found.chunk_source), ((0, 0, 0), GeometrySource::Unknown));
    let [chunk, offset] = &found.notes[..] else { panic!("{:?}", found.notes) };
    assert!(chunk.starts_with("chunk is set by hand, but the disk has no known"), "{chunk}");
    assert!(offset.starts_with("stripe-offset is set by hand, but the disk has"), "{offset}");
    let found = resolved("chunk=64KiB", &ARRAY, PLENTY);
    assert_eq!((stripes(&found), found.chunk_source), ((112, 16, 96), GeometrySource::Device));
    assert!(found.notes[0].starts_with("chunk=64KiB does not divide the disk's stripe, 112KiB"));
}

#[test]
fn a_stripe_above_the_dirty_limit_is_not_used() {
    let found = resolved("", &ARRAY, 112 * KIB);
    assert!(!found.is_stripe_too_large && found.notes.is_empty());
    let found = resolved("", &ARRAY, 112 * KIB - 4096);
    assert!(found.is_stripe_too_large);
    assert_eq!((found.geometry, found.used()), (ARRAY, ARRAY.without_stripes()));
    assert_eq!(
        found.notes,
        ["a stripe of 112KiB exceeds the dirty limit, 108KiB: writes are not gathered into \
          stripes; give more memory, or set stripe=none"]
    );
}

#[test]
fn a_served_volume_keeps_its_geometry() {
    let spec = parse_volume_spec("v=/x,stripe=112KiB").unwrap();
    let change = VolumeChange::parse(["stripe=auto"]).unwrap();
    assert!(change.has_fixed_settings());
    let error = spec.with(&change).unwrap_err();
    assert_eq!(error.mistake(), Mistake::Served);
    let sentence =
        "volume 'v': stripe cannot change from 112KiB to auto while the volume is served";
    assert!(error.explained().starts_with(sentence), "{error}");
    // `auto` is the default.
    assert_eq!(parse_volume_spec("v=/x,stripe=auto,chunk=auto").unwrap().to_string(), "v=/x");
}
