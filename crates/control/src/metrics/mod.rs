//! The figures of the server as metrics for Prometheus, in its text format, version 0.0.4.
//!
//! Counters start at zero when the server starts or the volume is added. The totals that are kept
//! over restarts are not used: they decrease if the server is killed, and Prometheus takes a
//! decrease for a restart from zero, so it would count them twice.
//!
//! The units are seconds and bytes; ratios are from 0 to 1. A state has one sample for each
//! possible value, which is 1 for the present one. A removed volume is absent from the next answer.
//!
//! [`server`] also serves them on a TCP port of this machine.

mod families;
pub(crate) mod server;
mod text;

use families::{journals, program, protection, volumes};
use forebay_api::{LatencyHistogram, Status};
use std::collections::BTreeMap;
use text::MetricsText;

/// The type of the answer.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// About the length of the samples of one volume.
const VOLUME_BYTES: usize = 8 << 10;

/// The figures that the metrics show.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// The status, without miss-ratio curves.
    pub status: Status,
    /// The latency histograms of each volume, in the order of the status, by the names of the
    /// fields of [`forebay_api::Latencies`].
    pub histograms: Vec<BTreeMap<String, LatencyHistogram>>,
}

/// The metrics as text.
pub fn metrics(measured: &Measurements) -> String {
    let mut text = MetricsText::with_capacity((1 + measured.status.volumes.len()) * VOLUME_BYTES);
    program(&mut text, &measured.status);
    volumes(&mut text, measured);
    journals(&mut text, &measured.status.journals);
    protection(&mut text, &measured.status);
    text.into_string()
}

#[cfg(test)]
mod tests;
