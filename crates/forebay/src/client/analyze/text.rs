//! The progress and the summary of an analysis, for a terminal.

use super::comparison::Worst;
use super::figures::{AnalysisReport, Sums, VolumeReport};
use super::{span, words};
use forebay_api::{
    AnalysisPhase, AnalysisRequest, AnalysisState, AnalysisStatus, Mode, VolumeStatus,
};
use forebay_terminal::units::bytes;

/// A larger part of the time is not worth a line.
const NEARLY_ALL: f64 = 0.99;

/// What an analysis will do, in a sentence; `None` if there is no volume to analyze.
pub(super) fn announced(request: &AnalysisRequest, served: &[VolumeStatus]) -> Option<String> {
    let volumes: Vec<&str> = match request.volumes.is_empty() {
        true => {
            let cached = served.iter().filter(|volume| volume.mode != Mode::Bypass);
            cached.map(|volume| &*volume.name).collect()
        }
        false => request.volumes.iter().map(|name| &**name).collect(),
    };
    let plural = if volumes.len() == 1 { "volume" } else { "volumes" };
    let names = (!volumes.is_empty()).then(|| volumes.join(", "))?;
    let phases = [request.learn_seconds, request.accelerate_seconds];
    Some(format!(
        "for {}, {plural} {names} will be served without the cache, so clients wait for the disks; \
         then the cache works again, except for {} % of the regions during {}; `forebay analyze \
         stop` ends it at any time",
        measure(request),
        request.hold_out_percent,
        span(phases.into_iter().fold(0, u64::saturating_add) as f64)
    ))
}

/// The length of the phase without the cache.
fn measure(request: &AnalysisRequest) -> String {
    let longest = span(request.measure_seconds_max() as f64);
    match request.measure_seconds {
        Some(_) => longest,
        None => format!("at most {longest}"),
    }
}

/// The progress of an analysis.
pub(super) fn progress(status: &AnalysisStatus) -> String {
    let mut text = match status.state {
        AnalysisState::None => return "there is no analysis\n".to_owned(),
        AnalysisState::Running => {
            let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
            let is_longest = status.phase == Some(AnalysisPhase::Measure)
                && status.request.measure_seconds.is_none();
            format!(
                "phase '{phase}': {} analyzed, {}{} left, {} intervals\n",
                span(status.analyzed_seconds),
                if is_longest { "at most " } else { "" },
                span(status.remaining_seconds),
                status.batches
            )
        }
        state => format!(
            "the analysis is {state}: {} analyzed in {} intervals, ended at {}\n",
            span(status.analyzed_seconds),
            status.batches,
            status.ended_at.as_deref().unwrap_or("an unknown time")
        ),
    };
    text += &asked_for(status);
    for interruption in &status.interruptions {
        text += &interrupted(interruption);
    }
    if let Some(problem) = &status.problem {
        text += &format!("would be lost at a restart: {problem}\n");
    }
    text
}

fn asked_for(status: &AnalysisStatus) -> String {
    let request = &status.request;
    format!(
        "measure {}, learn {}, accelerate {}; {} % of the regions held out; volumes: {}\n",
        measure(request),
        span(request.learn_seconds as f64),
        span(request.accelerate_seconds as f64),
        request.hold_out_percent,
        request.volumes.join(", ")
    )
}

/// An interruption in words, as a line.
pub(super) fn interrupted(interruption: &forebay_api::AnalysisInterruption) -> String {
    let phase = interruption.phase;
    format!("interrupted in the phase '{phase}', resumed at {}\n", interruption.resumed_at)
}

/// The summary of a report.
pub(super) fn summary(report: &AnalysisReport) -> String {
    let mut text = progress(&report.analysis.status);
    if let Some(subject) = &report.analysis.status.subject {
        text += &format!("{}\n", words::server(subject));
    }
    if let Some(note) = provisional(&report.analysis.status) {
        text += &format!("{note}\n");
    }
    if report.volumes.is_empty() {
        text += "no interval is complete yet\n";
    }
    for volume in &report.volumes {
        text += &format!("\nvolume '{}': {}\n", volume.name, words::headline(volume));
        text += &details(volume);
    }
    text
}

/// The note on a report about an analysis that is not complete.
pub(super) fn provisional(status: &AnalysisStatus) -> Option<&'static str> {
    match status.state {
        AnalysisState::Running => Some("the analysis is running: this report is provisional"),
        AnalysisState::Stopped => {
            Some("the analysis was stopped before its end: this report covers a part of it")
        }
        AnalysisState::None | AnalysisState::Complete => None,
    }
}

fn details(volume: &VolumeReport) -> String {
    let mut text = String::new();
    if let Some(judged) = &volume.judged {
        text += &format!("  judged: {}\n", words::configuration(judged));
    }
    for (kind, judgement) in [("reads", &volume.reads), ("writes", &volume.writes)] {
        if judgement.is_empty() {
            continue;
        }
        text += &format!("  {kind}: {}\n", words::verdict(judgement, volume.judged.as_ref()));
        let lines = words::comparisons(judgement);
        for line in lines.into_iter().chain(words::disagreement(judgement, &volume.sums)) {
            text += &format!("    {line}\n");
        }
    }
    if let Some(worst) = &volume.worst {
        text += &format!("  {}\n", worst_in_words(worst, volume.worst_at.as_deref()));
    }
    let [_, _, accelerate] = &volume.sums;
    if let Some(line) = compared(accelerate) {
        text += &format!("  {line}\n");
    }
    for line in causes(accelerate) {
        text += &format!("  {line}\n");
    }
    text
}

/// The part of the time in which requests were compared, if it is not nearly all.
pub(super) fn compared(sums: &Sums) -> Option<String> {
    let part = sums.compared_seconds / sums.seconds;
    (part < NEARLY_ALL).then(|| {
        format!("compared during {:.1} % of the time, which is enough for its load", part * 100.0)
    })
}

/// The worst interval in words.
pub(super) fn worst_in_words(worst: &Worst, at: Option<&str>) -> String {
    let (served, held) = (milliseconds(worst.served_mean), milliseconds(worst.held_mean));
    let kind = match (worst.ratio < 1.0, worst.is_exceptional) {
        (true, true) => "slower than without the cache, and exceptional",
        (true, false) => "slower than without the cache, but within the usual variation",
        (false, true) => "not slower than without the cache, but exceptional",
        (false, false) => "not slower than without the cache",
    };
    format!(
        "worst interval, at {}: {served} with the cache, {held} without: {kind}",
        at.unwrap_or("an unknown time")
    )
}

/// Figures that explain the result.
pub(super) fn causes(sums: &Sums) -> Vec<String> {
    let volume = &sums.volume;
    let percent = |part: u64, all: u64| format!("{:.1} %", part as f64 * 100.0 / all as f64);
    let mut causes = Vec::new();
    if volume.reads > 0 {
        causes.push(format!(
            "{} of the reads were hits; {} were read ahead in time, {} preloaded",
            percent(volume.read_hits, volume.reads),
            bytes(volume.prefetch_used_bytes),
            bytes(volume.preload_used_bytes)
        ));
    }
    if volume.writes > 0 {
        causes.push(format!(
            "{} of the writes were acknowledged from memory; {} writes shared {} gathered I/Os",
            percent(volume.deferred_writes, volume.writes),
            volume.gathered_writes,
            volume.gathered_ios
        ));
    }
    if let Some(ios) = sums.figures().disk_ios_per_request {
        causes.push(format!("the disk had {:.0} I/Os for 100 requests", ios * 100.0));
    }
    causes
}

/// A time in milliseconds with about three digits.
pub(super) fn milliseconds(seconds: f64) -> String {
    match seconds * 1000.0 {
        // These values would be rounded to 1000.0 us.
        ms if (0.99995..1.0).contains(&ms) => "1.00 ms".to_owned(),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.2} ms"),
        ms => format!("{:.1} us", ms * 1000.0),
    }
}

/// The meaning of a phase, for a reader of the report.
pub(super) const fn meaning(phase: AnalysisPhase) -> &'static str {
    match phase {
        AnalysisPhase::Measure => "served as if there were no cache",
        AnalysisPhase::Learn => "the cache fills; results do not count",
        AnalysisPhase::Accelerate => "the cache works",
    }
}
