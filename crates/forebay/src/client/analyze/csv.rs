//! The intervals of an analysis as CSV: a line for each volume and interval.

use super::figures::{AnalysisReport, Figures, sides};
use forebay_api::AnalysisPhase;
use std::fmt::Write;

const HEAD: &str = "volume,phase,begun_at,seconds,reads,writes,read_bytes,write_bytes,read_hits,\
    deferred_writes,read_mean_us,read_p99_us,write_mean_us,write_p99_us,normalised_iops,\
    disk_reads,disk_writes,disk_read_bytes,disk_write_bytes,disk_busy,disk_queue,cpu,\
    prefetch_used_bytes,preload_used_bytes,gathered_writes,gathered_ios,served_mean_us,\
    held_out_mean_us,times_as_fast\n";

pub(super) fn table(report: &AnalysisReport) -> String {
    let mut text = HEAD.to_owned();
    for volume in &report.volumes {
        for point in &volume.points {
            let one = &point.volume;
            let figures = Figures::of_point(point);
            let [served, held] = sides(one);
            let is_compared = point.phase != AnalysisPhase::Measure;
            let micros = |seconds: Option<f64>| cell(seconds.map(|seconds| seconds * 1e6));
            let cells = [
                quoted(&volume.name),
                point.phase.to_string(),
                point.begun_at.clone(),
                format!("{:.3}", point.seconds),
                one.reads.to_string(),
                one.writes.to_string(),
                one.read_bytes.to_string(),
                one.write_bytes.to_string(),
                one.read_hits.to_string(),
                one.deferred_writes.to_string(),
                micros(figures.read_mean),
                cell((one.reads > 0).then_some(one.read_latency.p99_us)),
                micros(figures.write_mean),
                cell((one.writes > 0).then_some(one.write_latency.p99_us)),
                cell(figures.normalised_iops),
                one.disk_reads.to_string(),
                one.disk_writes.to_string(),
                one.disk_read_bytes.to_string(),
                one.disk_write_bytes.to_string(),
                cell(figures.disk_busy),
                cell(figures.disk_queue),
                cell(figures.cpu),
                one.prefetch_used_bytes.to_string(),
                one.preload_used_bytes.to_string(),
                one.gathered_writes.to_string(),
                one.gathered_ios.to_string(),
                micros(served),
                micros(held),
                // A request that was in flight as the phase began would be compared with all.
                cell(is_compared.then(|| Some(held? / served?)).flatten()),
            ];
            writeln!(text, "{}", cells.join(",")).expect("writing to a string does not fail");
        }
    }
    text
}

/// A number; empty if there is none.
fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.3}"))
}

/// A text in quotes. The apostrophe keeps a spreadsheet from taking the text for a formula.
fn quoted(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}
