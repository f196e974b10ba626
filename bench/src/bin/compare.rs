//! `compare`: a table of fio reports, side by side. All figures are information, without limits.

use anyhow::{Context, Result, bail};
use clap::Parser;
use forebay_bench::fio::{self, Direction};
use forebay_bench::forebay::CounterSnapshot;
use forebay_bench::table::{TextTable, number};
use std::path::{Path, PathBuf};

/// Print fio results in several columns, with the I/O of the disk.
///
/// Each column is a directory with the reports `NAME.fio.json` of the loads, and the server status
/// before and after each as `NAME.before.json` and `NAME.after.json`.
#[derive(Parser)]
struct CompareArgs {
    /// The volume whose disk I/O is shown.
    #[arg(long)]
    volume: String,
    /// The loads, in the order of the table.
    #[arg(long, value_delimiter = ',')]
    loads: Vec<String>,
    /// The columns, each `TITLE=DIRECTORY`; the last one is compared with the first.
    #[arg(required = true)]
    columns: Vec<String>,
}

/// Figures that differ by less count as equal: two runs of the same load do.
const NOISE: f64 = 0.03;

/// One load in one column.
struct ColumnLoad {
    read: Direction,
    write: Direction,
    disk_ios: u64,
}

fn main() -> Result<()> {
    let arguments = CompareArgs::parse();
    let mut columns = Vec::new();
    for column in &arguments.columns {
        let Some((title, dir)) = column.split_once('=') else {
            bail!("{column:?} is not a column: write TITLE=DIRECTORY");
        };
        columns.push((title, PathBuf::from(dir)));
    }
    let titles = columns.iter().map(|(title, _)| *title);
    let mut table = TextTable::new(["figure"].into_iter().chain(titles).chain(["times"]));
    for load in &arguments.loads {
        let measured: Vec<ColumnLoad> = columns
            .iter()
            .map(|(_, dir)| measured(dir, load, &arguments.volume))
            .collect::<Result<_>>()?;
        for row in rows(load, &measured) {
            table.row(row);
        }
    }
    println!("{}\ninformation, without limits.", table.markdown());
    Ok(())
}

fn measured(dir: &Path, load: &str, volume: &str) -> Result<ColumnLoad> {
    let report = fio::read_report(&dir.join(format!("{load}.fio.json")))?;
    let counters = |moment: &str| {
        let path = dir.join(format!("{load}.{moment}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        CounterSnapshot::parse(&text, volume)
    };
    let (before, after) = (counters("before")?, counters("after")?);
    let disk_ios =
        after.since(&before, "backend_reads")? + after.since(&before, "backend_writes")?;
    Ok(ColumnLoad { read: report.read, write: report.write, disk_ios })
}

/// The rows of one load: one per direction with requests, and one for its disk.
fn rows(load: &str, measured: &[ColumnLoad]) -> Vec<Vec<String>> {
    type Figure = (&'static str, fn(&ColumnLoad) -> f64);
    const FIGURES: [Figure; 9] = [
        ("reads, IOPS", |one| one.read.iops),
        ("reads, mean us", |one| one.read.latency_us_mean),
        ("reads, p50 us", |one| one.read.latency_us_p50),
        ("reads, p99 us", |one| one.read.latency_us_p99),
        ("writes, IOPS", |one| one.write.iops),
        ("writes, mean us", |one| one.write.latency_us_mean),
        ("writes, p50 us", |one| one.write.latency_us_p50),
        ("writes, p99 us", |one| one.write.latency_us_p99),
        ("disk I/Os per request", |one| {
            one.disk_ios as f64 / (one.read.requests + one.write.requests).max(1) as f64
        }),
    ];
    let mut rows = Vec::new();
    for (name, figure) in FIGURES {
        let values: Vec<f64> = measured.iter().map(figure).collect();
        if values.iter().all(|value| *value == 0.0) {
            continue;
        }
        let mut row = vec![format!("{load}: {name}")];
        row.extend(values.iter().map(|value| number(Some(*value))));
        row.push(times(values.first().copied(), values.last().copied(), name.contains("IOPS")));
        rows.push(row);
    }
    rows
}

/// The ratio of the last column to the first, as better, equal or worse.
fn times(first: Option<f64>, last: Option<f64>, higher_is_better: bool) -> String {
    match (first, last) {
        (Some(first), Some(last)) if first > 0.0 && last > 0.0 => {
            let ratio = if higher_is_better { last / first } else { first / last };
            match ratio {
                ratio if ratio.max(1.0 / ratio) < 1.0 + NOISE => "equal".to_owned(),
                ratio if ratio >= 1.0 => format!("{} better", number(Some(ratio))),
                ratio => format!("{} worse", number(Some(1.0 / ratio))),
            }
        }
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(iops: f64, p50: f64, disk_ios: u64) -> ColumnLoad {
        let read = Direction { requests: 100, iops, latency_us_p50: p50, ..Direction::default() };
        ColumnLoad { read, write: Direction::default(), disk_ios }
    }

    #[test]
    fn better_is_up_for_rates_and_down_for_times() {
        let rows = rows("mix", &[one(100.0, 5000.0, 100), one(1000.0, 50.0, 5)]);
        let cell = |name: &str, column: usize| {
            let row = rows.iter().find(|row| row[0] == name).expect("the row is there");
            row[column].clone()
        };
        assert_eq!(rows.len(), 3);
        assert_eq!(cell("mix: reads, IOPS", 3), "10.0 better");
        assert_eq!(cell("mix: reads, p50 us", 3), "100 better");
        assert_eq!(cell("mix: disk I/Os per request", 2), "0.05");
    }

    #[test]
    fn what_got_worse_is_called_so_unless_it_is_noise() {
        assert_eq!(times(Some(100.0), Some(50.0), true), "2.00 worse");
        assert_eq!(times(Some(100.0), Some(150.0), false), "1.50 worse");
        assert_eq!(times(Some(100.0), Some(102.0), false), "equal");
        assert_eq!(times(Some(102.0), Some(100.0), false), "equal");
        assert_eq!(times(Some(100.0), Some(104.0), false), "1.04 worse");
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert_eq!(times(Some(0.0), Some(1.0), true), "-");
        assert_eq!(times(Some(1.0), Some(0.0), false), "-");
    }
}
