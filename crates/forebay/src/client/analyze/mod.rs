//! `forebay analyze`: starts and follows an analysis of the benefit, and reports what it found.

mod chart;
mod comparison;
mod confirm;
mod csv;
mod estimate;
mod figures;
mod html;
mod json;
mod judgement;
#[cfg(test)]
mod random;
mod text;
mod words;

pub(crate) use comparison::INTERVALS_MIN;

use super::connect;
use crate::arguments::{ShowArguments, StateArguments};
use crate::report::{print, print_json, with_remedy};
use anyhow::anyhow;
use clap::{Args, Subcommand};
use figures::AnalysisReport;
use forebay_api::{AnalysisRequest, AnalysisState};
use forebay_terminal::units::seconds_with_unit;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The subcommands of `forebay analyze`.
#[derive(Debug, Subcommand)]
pub(crate) enum AnalyzeCommand {
    /// Start an analysis
    #[command(long_about = "Start an analysis of the benefit, in three phases: measure, with the \
        volumes served as if there were no cache, for an hour at most unless --measure says \
        otherwise; learn, in which the cache fills; and \
        accelerate, whose results count. Some regions of the volumes, other ones in each interval, \
        are served as if there were no cache all the while, for comparison. The analysis survives \
        restarts of the server. Volumes in bypass are left out. Asks first on a terminal.")]
    Start(StartArguments),
    /// Show the progress of the analysis
    Status(ShowArguments),
    /// Stop the analysis: the cache works fully again, and the report shows what there is
    Stop(StateArguments),
    /// Report what the analysis has found so far
    #[command(long_about = "Report what the analysis has found so far: how many times as fast \
        requests are with the cache, how sure that is, and how it came about. Prints a summary \
        unless files are named.")]
    Report(ReportArguments),
}

/// Arguments of `forebay analyze start`.
#[derive(Args, Debug)]
pub(crate) struct StartArguments {
    /// The volumes [default: all that are not in bypass]
    #[arg(value_name = "VOLUME")]
    volumes: Vec<String>,
    /// Length of the phase without the cache: a number with s, m, h or d [default: until a volume
    /// has had enough requests, 1h at most]
    #[arg(long, value_name = "TIME", value_parser = length)]
    measure: Option<u64>,
    /// Length of the phase in which the cache fills
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = length)]
    learn: u64,
    /// Length of the phase whose results count
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = length)]
    accelerate: u64,
    /// Share of the regions that is served as if there were no cache, 1 to 50
    #[arg(long, value_name = "PERCENT", default_value = "1")]
    hold_out: u32,
    /// Start without a question: the cache of the volumes is off during the first phase
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    state: StateArguments,
}

/// Arguments of `forebay analyze report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// Write the report as a page with plots, for a browser and for printing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the report and all counters as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a table of all intervals as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    state: StateArguments,
}

/// `forebay analyze`.
pub(crate) fn analyze(command: AnalyzeCommand) -> anyhow::Result<()> {
    match command {
        AnalyzeCommand::Start(arguments) => start(arguments),
        AnalyzeCommand::Status(ShowArguments { json, state }) => {
            let status = connect(&state)?.analysis()?;
            match json {
                true => print_json(&status),
                false => print(&text::progress(&status)),
            }
        }
        AnalyzeCommand::Stop(state) => {
            let status = connect(&state)?.stop_analysis()?;
            print(&format!("the analysis is stopped after {} intervals\n", status.batches))
        }
        AnalyzeCommand::Report(arguments) => report(&arguments),
    }
}

fn start(arguments: StartArguments) -> anyhow::Result<()> {
    let request = AnalysisRequest {
        measure_seconds: arguments.measure,
        learn_seconds: arguments.learn,
        accelerate_seconds: arguments.accelerate,
        hold_out_percent: arguments.hold_out,
        volumes: arguments.volumes,
    };
    let client = connect(&arguments.state)?;
    // Without a volume, there is nothing to ask: the server says what is wrong.
    if let Some(announced) = text::announced(&request, &client.volume_list()?) {
        match arguments.yes {
            true => print(&format!("{announced}\n"))?,
            false if !confirm::confirm(&announced)? => {
                return print("the analysis is not started\n");
            }
            false => {}
        }
    }
    let status = client.start_analysis(&request)?;
    print(&format!("the analysis is started\n{}", text::progress(&status)))
}

fn report(arguments: &ReportArguments) -> anyhow::Result<()> {
    let analysis = connect(&arguments.state)?.analysis_result()?;
    if analysis.status.state == AnalysisState::None {
        let error = anyhow!("there is no analysis to report");
        return Err(with_remedy(error, "start one with `forebay analyze start`"));
    }
    let report = AnalysisReport::of(analysis);
    let mut printed = String::new();
    let files = [
        (&arguments.html, html::page as fn(&AnalysisReport) -> String),
        (&arguments.json, json::document),
        (&arguments.csv, csv::table),
    ];
    for (path, content) in files {
        let Some(path) = path else { continue };
        write(path, &content(&report)).map_err(|error| {
            let error = anyhow!("cannot write {}: {error}", path.display());
            with_remedy(
                error,
                "free space or name another place; the analysis stays, so this can be repeated",
            )
        })?;
        printed += &format!("{} is written\n", path.display());
    }
    if printed.is_empty() {
        printed = text::summary(&report);
    }
    print(&printed)
}

/// Replaces a file atomically: readers see the old or the new content, and if writing fails, the
/// old file remains.
fn write(path: &Path, content: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // An incomplete file would waste space on a disk that may be full.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Parses the length of a phase, in seconds.
fn length(text: &str) -> Result<u64, String> {
    seconds_with_unit(text).ok_or_else(|| {
        format!("'{text}' is not a time: write a number with s, m, h or d, as in 10m")
    })
}

/// A time in words: `3 d 4 h`, `12 min 5 s`.
fn span(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds.max(0.0)).as_secs();
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests;
