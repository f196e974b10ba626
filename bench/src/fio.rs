//! fio with its NBD engine, as a third-party client.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// fio's results for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Direction {
    /// Requests answered.
    pub requests: u64,
    /// Requests per second.
    pub iops: f64,
    /// Payload per second, in bytes.
    pub bytes_per_second: f64,
    /// Mean latency, in microseconds.
    pub latency_us_mean: f64,
    /// Median latency, in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile, in microseconds.
    pub latency_us_p99: f64,
}

/// fio's results for one group of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FioReport {
    /// Its reads.
    pub read: Direction,
    pub write: Direction,
}

/// Runs fio against the server behind `socket`, with `options`.
pub fn run(socket: &Path, export: &str, options: &[String]) -> Result<FioReport> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--group_reporting"])
        .arg(format!("--uri=nbd+unix:///{export}?socket={}", socket.display()))
        .args(options)
        .output()
        .context("running fio: install it, or omit the fio rows")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "fio ended with {}: {}{stdout}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    parse(&stdout)
}

/// Reads a file that fio wrote with `--output-format=json`.
pub fn read_report(path: &Path) -> Result<FioReport> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

/// The first group of jobs of a report. fio may print warnings before the report begins.
fn parse(text: &str) -> Result<FioReport> {
    let start = text.find('{').context("fio printed no report")?;
    let report: Value = serde_json::from_str(&text[start..]).context("fio's report is not JSON")?;
    let job = report.pointer("/jobs/0").context("fio's report has no jobs")?;
    ensure!(
        job["error"].as_i64().unwrap_or(0) == 0,
        "fio's job ended with error {}: see the server's log",
        job["error"]
    );
    Ok(FioReport { read: direction(&job["read"]), write: direction(&job["write"]) })
}

fn direction(value: &Value) -> Direction {
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
    let us = |pointer: &str| number(pointer) / 1000.0;
    Direction {
        requests: number("/total_ios") as u64,
        iops: number("/iops"),
        bytes_per_second: number("/bw_bytes"),
        latency_us_mean: us("/clat_ns/mean"),
        latency_us_p50: us("/clat_ns/percentile/50.000000"),
        latency_us_p99: us("/clat_ns/percentile/99.000000"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"a warning
        {"jobs": [{"error": 0, "read": {"total_ios": 10, "iops": 5.5, "bw_bytes": 22528,
        "clat_ns": {"mean": 2000.0, "percentile": {"50.000000": 1500, "99.000000": 9000}}},
        "write": {"total_ios": 0}}]}"#;

    #[test]
    fn a_report_is_read() {
        let report = parse(REPORT).unwrap();
        assert_eq!(report.read.requests, 10);
        assert_eq!((report.read.latency_us_p50, report.read.latency_us_p99), (1.5, 9.0));
        assert_eq!(report.write, Direction::default());
    }

    #[test]
    fn a_failed_job_is_an_error() {
        assert!(parse(&REPORT.replace("\"error\": 0", "\"error\": 5")).is_err());
        assert!(parse("fio: nothing to do").is_err());
    }
}
