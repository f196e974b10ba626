//! The report as JSON: its results, and the counters that they are computed from.

use super::comparison::{Comparison, Worst};
use super::estimate::Estimate;
use super::figures::{AnalysisReport, Sums, VolumeReport};
use super::judgement::{Judgement, Requests, Verdict};
use super::text::causes;
use super::words;
use forebay_api::{AnalysisPhase, AnalyzedVolume};
use serde_json::{Map, Value, json};

pub(super) fn document(report: &AnalysisReport) -> String {
    let volumes: Vec<Value> = report.volumes.iter().map(volume).collect();
    let document = json!({
        "status": report.analysis.status,
        "volumes": volumes,
        "batches": report.analysis.batches,
    });
    format!("{document:#}\n")
}

fn volume(volume: &VolumeReport) -> Value {
    let phases: Map<String, Value> = AnalysisPhase::ALL
        .iter()
        .zip(&volume.sums)
        .map(|(phase, sums)| (phase.to_string(), figures(sums)))
        .collect();
    let judged = volume.judged.as_ref();
    json!({
        "name": volume.name,
        "verdict": words::headline(volume),
        "kind": kind(volume.whole.verdict),
        "of": match volume.whole.of {
            Requests::All => "all",
            Requests::Reads => "reads",
            Requests::Writes => "writes",
        },
        "times_as_fast": volume.whole.ratio.map(estimate),
        "reads": judgement(&volume.reads, judged),
        "writes": judgement(&volume.writes, judged),
        "worst_interval": volume.worst.map(|one| worst(&one, volume.worst_at.as_deref())),
        "phases": phases,
        "causes": causes(&volume.sums[2]),
    })
}

const fn kind(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Benefit => "benefit",
        Verdict::Harm => "harm",
        Verdict::NoMeasurableBenefit => "no-measurable-benefit",
        Verdict::TooLittleData => "too-little-data",
        Verdict::NotCompared => "not-compared",
    }
}

fn judgement(judgement: &Judgement, judged: Option<&AnalyzedVolume>) -> Value {
    json!({
        "kind": kind(judgement.verdict),
        "verdict": words::verdict(judgement, judged),
        "times_as_fast": judgement.ratio.map(estimate),
        "with_held_out_regions": comparison(&judgement.held_out),
        "with_phase_measure": judgement.measure.map(estimate),
        "acknowledged_from_memory": judgement.is_deferred,
    })
}

fn comparison(comparison: &Comparison) -> Value {
    json!({
        "times_as_fast": comparison.ratio.map(estimate),
        "mean_with_cache_seconds": comparison.served_mean,
        "mean_without_cache_seconds": comparison.held_mean,
        "served_requests": comparison.served,
        "held_out_requests": comparison.held,
        "comparable_part": comparison.covered,
    })
}

fn worst(worst: &Worst, at: Option<&str>) -> Value {
    json!({
        "begun_at": at,
        "times_as_fast": worst.ratio,
        "mean_with_cache_seconds": worst.served_mean,
        "mean_without_cache_seconds": worst.held_mean,
        "exceptional": worst.is_exceptional,
    })
}

fn estimate(estimate: Estimate) -> Value {
    json!({"value": estimate.value, "low_95": estimate.low, "high_95": estimate.high})
}

fn figures(sums: &Sums) -> Value {
    let figures = sums.figures();
    json!({
        "seconds": sums.seconds,
        "compared_seconds": sums.compared_seconds,
        "bytes_per_second": figures.throughput,
        "requests_per_second": figures.iops,
        "read_mean_seconds": figures.read_mean,
        "write_mean_seconds": figures.write_mean,
        "normalised_iops": figures.normalised_iops,
        "disk_ios_per_request": figures.disk_ios_per_request,
        "disk_ios_per_second": figures.disk_iops,
        "request_bytes": figures.request_bytes,
        "disk_io_bytes": figures.disk_io_bytes,
        "processors": figures.cpu,
        "disk_busy": figures.disk_busy,
        "disk_queue": figures.disk_queue,
    })
}
