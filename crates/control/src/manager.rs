//! The daemon's side of the control API.

use crate::Measurements;
use forebay_api::{
    Analysis, AnalysisRequest, AnalysisStatus, ConnectDevice, ConnectedClient, ConnectedClients,
    ConnectedDevice, DiscardRequest, Discarded, DrillReport, History, Memory, MissingVolume,
    Problem, Progress, ServeDevice, ServedDevice, SiteStatus, SlowRequests, Statistics,
    StatisticsOfVolume, Status, TraceRequest, TraceSummary, VolumeSize, VolumeStatus,
};
use forebay_config::{ServerChange, VolumeChange, VolumeSpec};
use forebay_types::PinnedRanges;

/// Receives the progress of a long operation. May be called from any thread, at any rate, and never
/// blocks.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// Receives the pieces of a trace, each of whole lines. An empty piece only asks whether the client
/// still reads. Returns false if it does not, which ends the recording. May block for some seconds.
pub type TraceSink<'a> = &'a mut (dyn FnMut(Vec<u8>) -> bool + Send);

/// The daemon, as the control server sees it.
///
/// The server guarantees that each specification or change is valid by itself, that no change is
/// empty, and that every method is called on a thread that may block.
///
/// The manager accepts concurrent calls from several threads. An error is a [`Problem`] that names
/// its subject and the remedy. Operations except recordings continue when their
/// client has disconnected.
pub trait Manager: Send + Sync {
    /// The status of the server, its volumes and journals. Returns within milliseconds, even if
    /// disks hang.
    fn status(&self) -> Status;

    /// The site that the server watches; `None` if it watches none. As quick as
    /// [`Manager::status`].
    fn site(&self) -> Option<SiteStatus>;

    /// The figures for the metrics. Faster than [`Manager::status`], as it copies no curves.
    fn measurements(&self) -> Measurements;

    /// The statistics over time.
    fn statistics(&self) -> &dyn StatisticsManager;

    /// Changes settings of the server, and returns the memory that results. In the background,
    /// memory is given back, and dirty data is reduced to a smaller share.
    ///
    /// # Errors
    /// A size is out of bounds, contradicts another one, or does not leave the system its reserve;
    /// a share for writes is too small for a volume, or too large for the vault. Nothing changes
    /// then.
    fn set_server(&self, change: &ServerChange) -> Result<Memory, Problem>;

    /// One volume; `None` if there is none of this name. Its time does not grow with the number of
    /// volumes.
    fn volume(&self, name: &str) -> Option<VolumeStatus>;

    /// All volumes, in the order of their addition. As quick as [`Manager::status`].
    fn volume_list(&self) -> Vec<VolumeStatus>;

    /// Opens the backing and serves the volume.
    ///
    /// # Errors
    /// The name or the disk is in use, there are too many volumes, or backing or journal cannot be
    /// opened.
    fn add_volume(&self, spec: VolumeSpec) -> Result<VolumeStatus, Problem>;

    /// Changes settings of a volume while it is served. [`VolumeSpec::with`] refuses those that are
    /// fixed.
    ///
    /// # Errors
    /// There is no such volume, or the result is invalid, such as write-back without protection.
    fn set_volume(&self, name: &str, change: VolumeChange) -> Result<VolumeStatus, Problem>;

    /// Flushes the volume, then removes it. If the flush fails, the volume stays with its data.
    ///
    /// # Errors
    /// There is no such volume, its disk fails, or clients are connected to it and `force` is not
    /// set.
    fn remove_volume(
        &self,
        name: &str,
        force: bool,
        progress: ProgressFn<'_>,
    ) -> Result<(), Problem>;

    /// Flushes the volume: destages everything that is dirty now, and flushes the disk.
    ///
    /// # Errors
    /// There is no such volume, or its disk fails.
    fn flush_volume(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Saves the volume, which is in memory, to its image.
    ///
    /// # Errors
    /// There is no such volume, it has no image, or the image cannot be written.
    fn save_volume(&self, name: &str) -> Result<(), Problem>;

    /// Removes the volume although its disk does not take its data, and gives up what the disk
    /// lacks.
    ///
    /// # Errors
    /// There is no such volume, the data cannot be saved as requested, or clients are connected to
    /// it and `force` is not set: it is still served. Or its disk hangs: the data is given up.
    fn discard_volume(&self, name: &str, request: &DiscardRequest) -> Result<Discarded, Problem>;

    /// The block devices of the kernel on which volumes are served.
    fn devices(&self) -> Box<dyn DeviceManager + '_>;

    /// The disks of the volumes.
    fn disks(&self) -> Box<dyn DiskManager + '_>;

    /// Pins ranges of the volume, beside those that are pinned already.
    ///
    /// # Errors
    /// There is no such volume, it is in bypass, a range is not inside it, or it would pin more
    /// than it may.
    fn pin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem>;

    /// Unpins ranges of the volume, whether they are pinned or not.
    ///
    /// # Errors
    /// There is no such volume, or a range is not inside it.
    fn unpin_volume(&self, name: &str, ranges: PinnedRanges) -> Result<VolumeStatus, Problem>;

    /// The analysis of the benefit.
    fn analysis(&self) -> &dyn AnalysisManager;

    /// Rehearses a power failure, stores the report, and returns it.
    ///
    /// # Errors
    /// There is no vault, or it holds a dump, or it fails.
    fn drill(&self) -> Result<DrillReport, Problem>;

    /// The connected clients.
    fn clients(&self) -> &dyn ClientManager;

    /// Records the requests of clients. Returns at the end of the recording. The first piece is
    /// sent when it begins.
    ///
    /// # Errors
    /// There is no such volume, or another recording is in progress: no piece was sent then.
    fn record_trace(
        &self,
        request: &TraceRequest,
        sink: TraceSink<'_>,
    ) -> Result<TraceSummary, Problem>;

    /// Flushes all volumes. After success the daemon exits, once the server has sent its answer.
    ///
    /// # Errors
    /// A disk fails, or clients are connected and `force` is not set; the daemon continues.
    fn stop(&self, force: bool, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Applies the changes of the configuration file.
    ///
    /// # Errors
    /// The file is invalid, or a change failed; or more than half of the volumes would be removed,
    /// and not `removes`.
    fn reload(&self, removes: bool) -> Result<(), Problem>;

    /// Stops serving, and hands the pool over to the program now at the daemon's path. After
    /// success the daemon exits, as after [`Manager::stop`].
    ///
    /// # Errors
    /// The pool has no keeper, or the program cannot be started; the daemon continues.
    fn upgrade(&self) -> Result<(), Problem>;
}

/// Statistics over time. Each call is as quick as [`Manager::status`].
pub trait StatisticsManager: Send + Sync {
    /// The statistics of the volumes.
    fn all(&self) -> Statistics;

    /// The statistics of one volume, with latency histograms; `None` if there is no such volume.
    fn of_volume(&self, name: &str) -> Option<StatisticsOfVolume>;

    /// The past of one volume, or of all together; `None` if there is no such volume. It has the
    /// intervals of five seconds if it is to be `fine`.
    fn history(&self, name: Option<&str>, fine: bool) -> Option<History>;
}

/// The clients and their requests. Each call is as quick as [`Manager::status`].
pub trait ClientManager: Send + Sync {
    /// The connected clients.
    fn list(&self) -> ConnectedClients;

    /// Disconnects a client without waiting for its requests, and returns what it was.
    ///
    /// # Errors
    /// There is no such client.
    fn disconnect(&self, id: u64) -> Result<ConnectedClient, Problem>;

    /// The last slow requests of one volume, or of all; `None` if there is no such volume.
    fn slow_requests(&self, name: Option<&str>) -> Option<SlowRequests>;
}

/// The analysis of the benefit, of which there is one at a time.
pub trait AnalysisManager: Send + Sync {
    /// Its progress. As quick as [`Manager::status`].
    fn status(&self) -> AnalysisStatus;

    /// All that it has counted. As quick as [`Manager::status`].
    fn result(&self) -> Analysis;

    /// Starts an analysis. It replaces a former one that has ended.
    ///
    /// # Errors
    /// An analysis runs, a length or the share is out of bounds, a volume is unknown or in bypass,
    /// there is none or too many, or the state directory cannot be written.
    fn start(&self, request: AnalysisRequest) -> Result<AnalysisStatus, Problem>;

    /// Stops the analysis.
    ///
    /// # Errors
    /// None runs.
    fn stop(&self) -> Result<AnalysisStatus, Problem>;
}

/// Serves volumes on block devices of the kernel.
pub trait DeviceManager {
    /// Serves the volume on a device that the kernel's ublk driver has made for it.
    ///
    /// # Errors
    /// There is no such volume or device, or the server cannot serve devices.
    fn serve(&self, volume: &str, request: &ServeDevice) -> Result<ServedDevice, Problem>;

    /// Prepares the volume for a device of the kernel's NBD client.
    ///
    /// # Errors
    /// There is no such volume, no listener that such a client can use, or requests of the
    /// connection that is replaced are in flight.
    fn connect(&self, volume: &str, request: &ConnectDevice) -> Result<ConnectedDevice, Problem>;
}

/// What is done with the disk of a volume.
pub trait DiskManager {
    /// Trusts the volume's disk again after it failed a flush, and flushes it.
    ///
    /// # Errors
    /// There is no such volume, or its disk fails again.
    fn trust(&self, name: &str, progress: ProgressFn<'_>) -> Result<(), Problem>;

    /// Measures the size below which writes of the volume are worth gathering. Takes some seconds.
    ///
    /// # Errors
    /// There is no such volume, it always has requests in flight, or its disk cannot be measured.
    fn calibrate(&self, name: &str) -> Result<VolumeStatus, Problem>;

    /// Serves a volume that could not be served because another host has its disk, or that is on
    /// standby: ends what another host has of it. Does nothing if it is served already.
    ///
    /// # Errors
    /// There is no such volume, or its disk cannot be taken over.
    fn take_over(&self, name: &str) -> Result<VolumeStatus, Problem>;

    /// Ends the service of a volume until it is taken over: disconnects its clients, and writes its
    /// dirty data to its disk.
    ///
    /// # Errors
    /// There is no such volume, or its disk does not take its data.
    fn stand_by(&self, name: &str, progress: ProgressFn<'_>) -> Result<MissingVolume, Problem>;

    /// Makes a volume as large as its disk, which has grown.
    ///
    /// # Errors
    /// There is no such volume, its disk has shrunk, or its size is read only when it is opened.
    fn resize(&self, name: &str) -> Result<VolumeSize, Problem>;
}
