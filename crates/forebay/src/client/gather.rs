//! The write sizes that are worth gathering.

use forebay_api::GatherStatus;
use forebay_terminal::units::{bytes, micros};
use forebay_types::Size;

/// Size and cost in one sentence.
pub(super) fn summary(gather: &GatherStatus) -> String {
    format!("writes worth gathering: {}; an I/O takes {}", worth(gather), cost(gather))
}

/// The size, with its source.
pub(super) fn worth(gather: &GatherStatus) -> String {
    match gather.below_bytes {
        0 => format!("none ({})", gather.source),
        bytes => format!("below {} ({})", Size(bytes), gather.source),
    }
}

/// The measured cost of an I/O, and why there is no measurement, or no newer one.
pub(super) fn cost(gather: &GatherStatus) -> String {
    let fixed_us = gather.fixed_us.map(|us| us.round() as u64);
    let measured = fixed_us.map(|us| match gather.bytes_per_second {
        Some(speed) => format!("{} + its size at {}/s", micros(us), bytes(speed)),
        None => format!("{}, whatever its size", micros(us)),
    });
    let reason = gather.not_measured.as_ref().map(|reason| format!("not measured: {reason}"));
    measured.into_iter().chain(reason).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::GatherSource;

    #[test]
    fn writes_that_are_worth_gathering_are_shown_with_the_reason() {
        let measured = |below_bytes, fixed_us, bytes_per_second| GatherStatus {
            below_bytes,
            source: GatherSource::Measured,
            measured_below_bytes: Some(below_bytes),
            fixed_us: Some(fixed_us),
            bytes_per_second,
            not_measured: None,
        };
        let not = |below_bytes, source, reason: &str| GatherStatus {
            below_bytes,
            source,
            not_measured: Some(reason.into()),
            ..GatherStatus::default()
        };
        let hdd = measured(8 << 20, 12_400.0, Some(120 << 20));
        let fixed = GatherStatus {
            not_measured: Some("why not".into()),
            ..measured(32 << 20, 2000.0, None)
        };
        for (gather, below, takes) in [
            (&hdd, "below 8MiB (measured)", "12 ms + its size at 120 MiB/s"),
            (&fixed, "below 32MiB (measured)", "2.0 ms, whatever its size; not measured: why not"),
            (
                &not(0, GatherSource::SetByHand, "gather-below is set"),
                "none (set by hand)",
                "not measured: gather-below is set",
            ),
            (
                &not(64 << 10, GatherSource::Default, "I/O error"),
                "below 64KiB (default)",
                "not measured: I/O error",
            ),
        ] {
            assert_eq!((&*worth(gather), &*cost(gather)), (below, takes));
        }
        assert_eq!(
            summary(&hdd),
            "writes worth gathering: below 8MiB (measured); an I/O takes 12 ms + its size at 120 \
             MiB/s"
        );
        let quick = measured(4096, 999.4, None);
        assert!(summary(&quick).ends_with("999 us, whatever its size"));
    }
}
