//! The client for programs without an async runtime, such as the command line.

use crate::{
    AddVolume, Analysis, AnalysisRequest, AnalysisStatus, Client, ClientError, DiscardRequest,
    Discarded, DrillReport, History, Memory, PinRequest, Progress, ServerSettings, SlowRequests,
    Statistics, StatisticsOfVolume, Status, TraceRequest, TraceSummary, VolumeSettings,
    VolumeStatus,
};
use std::{io, path::PathBuf};
use tokio::runtime::{Builder, Runtime};

/// A [`Client`] whose requests block the calling thread. It panics inside an async runtime.
#[derive(Debug)]
pub struct BlockingClient {
    client: Client,
    runtime: Runtime,
}

type Result<T> = std::result::Result<T, ClientError>;

impl BlockingClient {
    /// A client for the control socket at this path. Each request opens the socket.
    ///
    /// # Errors
    /// The event loop cannot be created, for example for lack of descriptors.
    pub fn new(socket: impl Into<PathBuf>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Self { client: Client::new(socket), runtime })
    }

    /// See [`Client::status`].
    pub fn status(&self) -> Result<Status> {
        self.runtime.block_on(self.client.status())
    }

    /// See [`Client::statistics`].
    pub fn statistics(&self) -> Result<Statistics> {
        self.runtime.block_on(self.client.statistics())
    }

    /// See [`Client::history`].
    pub fn history(&self, name: Option<&str>, fine: bool) -> Result<History> {
        self.runtime.block_on(self.client.history(name, fine))
    }

    /// See [`Client::volume_statistics`].
    pub fn volume_statistics(&self, name: &str) -> Result<StatisticsOfVolume> {
        self.runtime.block_on(self.client.volume_statistics(name))
    }

    /// See [`Client::set_server`].
    pub fn set_server(&self, change: &ServerSettings) -> Result<Memory> {
        self.runtime.block_on(self.client.set_server(change))
    }

    /// See [`Client::volume_list`].
    pub fn volume_list(&self) -> Result<Vec<VolumeStatus>> {
        self.runtime.block_on(self.client.volume_list())
    }

    /// See [`Client::volume`].
    pub fn volume(&self, name: &str) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.volume(name))
    }

    /// See [`Client::add_volume`].
    pub fn add_volume(&self, request: &AddVolume) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.add_volume(request))
    }

    /// See [`Client::set_volume`].
    pub fn set_volume(&self, name: &str, change: &VolumeSettings) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.set_volume(name, change))
    }

    /// See [`Client::remove_volume`].
    pub fn remove_volume(
        &self,
        name: &str,
        force: bool,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<()> {
        self.runtime.block_on(self.client.remove_volume(name, force, progress))
    }

    /// See [`Client::discard_volume`].
    pub fn discard_volume(&self, name: &str, request: &DiscardRequest) -> Result<Discarded> {
        self.runtime.block_on(self.client.discard_volume(name, request))
    }

    /// See [`Client::flush_volume`].
    pub fn flush_volume(&self, name: &str, progress: impl FnMut(Progress) + Send) -> Result<()> {
        self.runtime.block_on(self.client.flush_volume(name, progress))
    }

    /// See [`Client::save_volume`].
    pub fn save_volume(&self, name: &str) -> Result<()> {
        self.runtime.block_on(self.client.save_volume(name))
    }

    /// See [`Client::trust_volume`].
    pub fn trust_volume(&self, name: &str, progress: impl FnMut(Progress) + Send) -> Result<()> {
        self.runtime.block_on(self.client.trust_volume(name, progress))
    }

    /// See [`Client::calibrate_volume`].
    pub fn calibrate_volume(&self, name: &str) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.calibrate_volume(name))
    }

    /// See [`Client::pin_volume`].
    pub fn pin_volume(&self, name: &str, request: &PinRequest) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.pin_volume(name, request))
    }

    /// See [`Client::unpin_volume`].
    pub fn unpin_volume(&self, name: &str, request: &PinRequest) -> Result<VolumeStatus> {
        self.runtime.block_on(self.client.unpin_volume(name, request))
    }

    /// See [`Client::analysis`].
    pub fn analysis(&self) -> Result<AnalysisStatus> {
        self.runtime.block_on(self.client.analysis())
    }

    /// See [`Client::analysis_result`].
    pub fn analysis_result(&self) -> Result<Analysis> {
        self.runtime.block_on(self.client.analysis_result())
    }

    /// See [`Client::start_analysis`].
    pub fn start_analysis(&self, request: &AnalysisRequest) -> Result<AnalysisStatus> {
        self.runtime.block_on(self.client.start_analysis(request))
    }

    /// See [`Client::stop_analysis`].
    pub fn stop_analysis(&self) -> Result<AnalysisStatus> {
        self.runtime.block_on(self.client.stop_analysis())
    }

    /// See [`Client::drill`].
    pub fn drill(&self) -> Result<DrillReport> {
        self.runtime.block_on(self.client.drill())
    }

    /// See [`Client::slow_requests`].
    pub fn slow_requests(&self, name: Option<&str>) -> Result<SlowRequests> {
        self.runtime.block_on(self.client.slow_requests(name))
    }

    /// See [`Client::record_trace`].
    pub fn record_trace<E>(
        &self,
        request: &TraceRequest,
        write: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> Result<std::result::Result<TraceSummary, E>> {
        self.runtime.block_on(self.client.record_trace(request, write))
    }

    /// See [`Client::stop`].
    pub fn stop(&self, force: bool, progress: impl FnMut(Progress) + Send) -> Result<()> {
        self.runtime.block_on(self.client.stop(force, progress))
    }

    /// See [`Client::reload`].
    pub fn reload(&self, removes: bool) -> Result<()> {
        self.runtime.block_on(self.client.reload(removes))
    }

    /// See [`Client::upgrade`].
    pub fn upgrade(&self) -> Result<()> {
        self.runtime.block_on(self.client.upgrade())
    }
}
