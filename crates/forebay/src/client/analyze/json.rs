//! The report as JSON: its results, and the counters that they are computed from.

use super::comparison::{Comparison, Estimate, Verdict};
use super::figures::{AnalysisReport, Sums, VolumeReport, verdict};
use super::text::causes;
use forebay_api::AnalysisPhase;
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
    json!({
        "name": volume.name,
        "verdict": volume.verdict(),
        "all": comparison(&volume.all),
        "reads": comparison(&volume.reads),
        "writes": comparison(&volume.writes),
        "accelerate_beside_measure": volume.phases.map(estimate),
        "worst_interval_at": volume.worst_at,
        "phases": phases,
        "causes": causes(&volume.sums[2]),
    })
}

fn comparison(comparison: &Comparison) -> Value {
    let kind = match comparison.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoMeasurableBenefit => "no-measurable-benefit",
        Verdict::TooLittleData => "too-little-data",
        Verdict::NotCompared => "not-compared",
    };
    json!({
        "kind": kind,
        "verdict": verdict(comparison),
        "times_faster": comparison.ratio.map(estimate),
        "mean_with_cache_seconds": comparison.served_mean,
        "mean_without_cache_seconds": comparison.held_mean,
        "served_requests": comparison.served,
        "held_out_requests": comparison.held,
        "comparable_part": comparison.covered,
        "worst": comparison.worst.map(|worst| json!({
            "times_faster": worst.ratio,
            "mean_with_cache_seconds": worst.served_mean,
            "mean_without_cache_seconds": worst.held_mean,
            "exceptional": worst.is_exceptional,
        })),
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
