//! What the reports say in words. A ratio is always how many times as fast requests are with the
//! cache as without it: above 1 it is a benefit, below 1 it is harm.

use super::comparison::Comparison;
use super::estimate::Estimate;
use super::figures::{Sums, VolumeReport};
use super::judgement::{Judgement, Requests, Verdict};
use super::text::milliseconds;
use forebay_api::{AnalysisSubject, AnalyzedVolume};
use forebay_terminal::units::bytes;

/// The verdict on a volume.
pub(super) fn headline(volume: &VolumeReport) -> String {
    let whole = &volume.whole;
    let of = match (whole.of, volume.reads.is_empty(), volume.writes.is_empty()) {
        (Requests::Reads, ..) | (Requests::All, _, true) => "reads",
        (Requests::Writes, ..) | (Requests::All, true, false) => "writes",
        (Requests::All, false, false) => "reads and writes",
    };
    let Some(ratio) = whole.ratio else { return "too little data for a verdict".to_owned() };
    let [value, low, high] = [ratio.value, ratio.low, ratio.high].map(times);
    let claim = format!(
        "{of} are {value} times as fast with the cache as without it (95 % interval {low} to \
         {high})"
    );
    match whole.verdict {
        Verdict::NoMeasurableBenefit => format!("no measurable benefit: {claim}"),
        Verdict::Harm => format!("the cache does harm: {claim}"),
        _ => claim,
    }
}

/// The verdict on the requests of a kind.
pub(super) fn verdict(judgement: &Judgement, volume: Option<&AnalyzedVolume>) -> String {
    match (judgement.verdict, judgement.ratio) {
        (Verdict::NotCompared, _) => format!("not compared: {}", obstacle(volume)),
        (Verdict::TooLittleData, _) | (_, None) => "too little data for a verdict".to_owned(),
        (Verdict::NoMeasurableBenefit, Some(ratio)) => {
            format!("no measurable benefit: {}", as_fast(ratio))
        }
        (Verdict::Benefit | Verdict::Harm, Some(ratio)) => as_fast(ratio),
    }
}

/// Why writes that are held out are not counted.
fn obstacle(volume: Option<&AnalyzedVolume>) -> &'static str {
    let protection = volume.map_or("", |volume| &*volume.protection);
    if volume.is_some_and(|volume| volume.ordered) {
        "the volume destages in order, so a write past memory would have to wait for all earlier \
         ones; none is held out"
    } else if protection.contains("journal") {
        "a write past the journal waits for the disk's stable storage, for which it would not \
         wait without a cache"
    } else if protection.contains("ups") {
        "while a UPS protects memory, a write past memory waits for the disk's stable storage, for \
         which it would not wait without a cache"
    } else {
        "a journal, a UPS or their order makes those held out wait for more than they would \
         without a cache"
    }
}

/// What the two comparisons of a kind say, a line each.
pub(super) fn comparisons(judgement: &Judgement) -> Vec<String> {
    let mut lines = Vec::new();
    if judgement.verdict == Verdict::NotCompared {
        return lines;
    }
    lines.push(match (judgement.is_deferred, judgement.held_out.ratio) {
        (true, _) => {
            "not compared with held-out regions: memory acknowledges writes, and one that \
                      is held out would wait for the destages of others"
                .to_owned()
        }
        (false, Some(ratio)) => {
            format!("with held-out regions: {}; {}", as_fast(ratio), sides(&judgement.held_out))
        }
        (false, None) => format!(
            "with held-out regions: too little data; {} requests served, {} held out",
            judgement.held_out.served, judgement.held_out.held
        ),
    });
    lines.push(match judgement.measure {
        Some(ratio) => format!("with the phase 'measure': {}", as_fast(ratio)),
        None => "with the phase 'measure': too little data".to_owned(),
    });
    lines
}

/// Why both comparisons of a kind differ, if they do.
pub(super) fn disagreement(judgement: &Judgement, sums: &[Sums; 3]) -> Option<String> {
    let (beside, measured) = (judgement.held_out.ratio?, judgement.measure?);
    let is_apart = beside.high < measured.low || measured.high < beside.low;
    let [without, _, with] = sums.each_ref().map(|sums| sums.figures().disk_queue);
    (is_apart && !judgement.is_deferred).then(|| {
        format!(
            "these differ: either the load was not the same in both phases, or requests waited for \
             each other at the disk, which had {:.1} I/Os in flight without the cache and {:.1} \
             with it; the verdict covers both",
            without.unwrap_or_default(),
            with.unwrap_or_default()
        )
    })
}

fn sides(comparison: &Comparison) -> String {
    format!(
        "mean {} with the cache, {} without; {} requests served, {} held out; {:.0} % comparable",
        milliseconds(comparison.served_mean),
        milliseconds(comparison.held_mean),
        comparison.served,
        comparison.held,
        comparison.covered * 100.0
    )
}

/// The server that was judged.
pub(super) fn server(subject: &AnalysisSubject) -> String {
    format!(
        "host {}, Forebay {}, {} of memory",
        subject.host,
        subject.version,
        bytes(subject.memory_bytes)
    )
}

/// The configuration of a volume that was judged.
pub(super) fn configuration(volume: &AnalyzedVolume) -> String {
    let seeks = match volume.rotational {
        Some(true) => ", rotating",
        Some(false) => ", without seeks",
        None => "",
    };
    let stripes = match volume.stripe_bytes {
        0 => String::new(),
        stripe => format!(", stripes of {}", bytes(stripe)),
    };
    let protection = match &*volume.mode {
        "write-back" => format!(", protection {}", volume.protection),
        _ => String::new(),
    };
    format!(
        "{}{protection}{}, read-ahead {}; disk {} of {}{seeks}{stripes}",
        volume.mode,
        if volume.ordered { ", ordered" } else { "" },
        if volume.prefetch { "on" } else { "off" },
        volume.backing,
        bytes(volume.size_bytes)
    )
}

/// A ratio with its interval.
pub(super) fn as_fast(ratio: Estimate) -> String {
    let [value, low, high] = [ratio.value, ratio.low, ratio.high].map(times);
    format!("{value} times as fast (95 % interval {low} to {high})")
}

/// A ratio with about three digits.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 100.0 => format!("{ratio:.0}"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.2}"),
    }
}
