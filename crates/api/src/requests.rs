//! The requests of both clients, each once.

use crate::{
    AddVolume, Analysis, AnalysisRequest, AnalysisStatus, BlockingClient, Client, ConnectDevice,
    ConnectedClient, ConnectedClients, ConnectedDevice, DiscardRequest, Discarded, DrillReport,
    History, Memory, MissingVolume, PinRequest, Progress, ServeDevice, ServedDevice,
    ServerSettings, SiteStatus, SlowRequests, Statistics, StatisticsOfVolume, Status, VolumeList,
    VolumeSettings, VolumeSize, VolumeStatus,
    client::{ClientResult, DRILL_TIME_MAX, TAKEOVER_TIME_MAX},
    paths,
};
use hyper::Method;

/// Defines requests for [`Client`], and for [`BlockingClient`] with the same names.
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(&$this:ident $(, $argument:ident: $type:ty)* $(,)?) -> $answer:ty $body:block
    )+) => {
        /// The requests.
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&$this $(, $argument: $type)*) -> $answer $body
            )+
        }

        /// The requests.
        impl BlockingClient {
            $(
                $(#[$doc])*
                pub fn $name(&self $(, $argument: $type)*) -> $answer {
                    self.runtime.block_on(self.client.$name($($argument),*))
                }
            )+
        }
    };
}

requests! {
    /// The status of the server and its volumes.
    fn status(&self) -> ClientResult<Status> {
        self.query(paths::STATUS).await
    }

    /// The statistics of the volumes over time.
    fn statistics(&self) -> ClientResult<Statistics> {
        self.query(paths::STATISTICS).await
    }

    /// The past of one volume, or of all together, interval by interval; with the intervals of
    /// five seconds if it is to be `fine`.
    fn history(&self, name: Option<&str>, fine: bool) -> ClientResult<History> {
        let of_volume = |name| paths::of_volume(paths::VOLUME_HISTORY, name);
        let path = name.map_or_else(|| paths::HISTORY.to_owned(), of_volume);
        self.query(&if fine { path + "?fine=true" } else { path }).await
    }

    /// The statistics of one volume over time, with latency histograms.
    fn volume_statistics(&self, name: &str) -> ClientResult<StatisticsOfVolume> {
        self.query(&paths::of_volume(paths::VOLUME_STATISTICS, name)).await
    }

    /// Changes settings of the server. Returns its memory.
    fn set_server(&self, change: &ServerSettings) -> ClientResult<Memory> {
        self.request(Method::PATCH, paths::SETTINGS, Some(change)).await
    }

    /// All volumes.
    fn volume_list(&self) -> ClientResult<Vec<VolumeStatus>> {
        let list: VolumeList = self.query(paths::VOLUMES).await?;
        Ok(list.volumes)
    }

    /// One volume.
    fn volume(&self, name: &str) -> ClientResult<VolumeStatus> {
        self.query(&paths::of_volume(paths::VOLUME, name)).await
    }

    /// Adds a volume.
    fn add_volume(&self, request: &AddVolume) -> ClientResult<VolumeStatus> {
        self.request(Method::POST, paths::VOLUMES, Some(request)).await
    }

    /// Changes settings of a volume.
    fn set_volume(&self, name: &str, change: &VolumeSettings) -> ClientResult<VolumeStatus> {
        self.request(Method::PATCH, &paths::of_volume(paths::VOLUME, name), Some(change)).await
    }

    /// Flushes a volume, then removes it. With `force`, even if clients are connected to it.
    fn remove_volume(
        &self,
        name: &str,
        force: bool,
        progress: impl FnMut(Progress) + Send,
    ) -> ClientResult<()> {
        let path = paths::with_force(&paths::of_volume(paths::VOLUME, name), force);
        self.operate(Method::DELETE, &path, progress).await
    }

    /// Removes a volume whose disk does not take its data, and gives up what the disk lacks.
    fn discard_volume(&self, name: &str, request: &DiscardRequest) -> ClientResult<Discarded> {
        let path = paths::of_volume(paths::VOLUME_DISCARD, name);
        self.request_within(DRILL_TIME_MAX, Method::POST, &path, Some(request)).await
    }

    /// Flushes a volume: destages all dirty data and flushes its disk.
    fn flush_volume(
        &self,
        name: &str,
        progress: impl FnMut(Progress) + Send,
    ) -> ClientResult<()> {
        self.operate(Method::POST, &paths::of_volume(paths::VOLUME_FLUSH, name), progress).await
    }

    /// Saves a volume in memory to its image.
    fn save_volume(&self, name: &str) -> ClientResult<()> {
        self.operate(Method::POST, &paths::of_volume(paths::VOLUME_SAVE, name), |_| ()).await
    }

    /// Serves a volume on a block device that the kernel has made for it.
    fn serve_device(&self, name: &str, request: &ServeDevice) -> ClientResult<ServedDevice> {
        let path = paths::of_volume(paths::VOLUME_DEVICE, name);
        self.request(Method::POST, &path, Some(request)).await
    }

    /// Prepares a volume for a block device of the kernel's NBD client.
    fn connect_device(
        &self,
        name: &str,
        request: &ConnectDevice,
    ) -> ClientResult<ConnectedDevice> {
        let path = paths::of_volume(paths::VOLUME_NBD_DEVICE, name);
        self.request(Method::POST, &path, Some(request)).await
    }

    /// Trusts a volume's disk again after it failed a flush, and flushes it.
    fn trust_volume(
        &self,
        name: &str,
        progress: impl FnMut(Progress) + Send,
    ) -> ClientResult<()> {
        self.operate(Method::POST, &paths::of_volume(paths::VOLUME_TRUST, name), progress).await
    }

    /// Measures the size below which writes of a volume are worth gathering.
    fn calibrate_volume(&self, name: &str) -> ClientResult<VolumeStatus> {
        let path = paths::of_volume(paths::VOLUME_CALIBRATE, name);
        self.request(Method::POST, &path, None::<&()>).await
    }

    /// Makes a volume as large as its disk, which has grown.
    fn resize_volume(&self, name: &str) -> ClientResult<VolumeSize> {
        let path = paths::of_volume(paths::VOLUME_RESIZE, name);
        self.request(Method::POST, &path, None::<&()>).await
    }

    /// Serves a volume that another host has, and shuts that host out. It may read a journal first.
    fn take_over_volume(&self, name: &str) -> ClientResult<VolumeStatus> {
        let path = paths::of_volume(paths::VOLUME_TAKEOVER, name);
        self.request_within(TAKEOVER_TIME_MAX, Method::POST, &path, None::<&()>).await
    }

    /// Ends the service of a volume, so that another host can take it over. The disk takes its
    /// dirty data first.
    fn stand_by_volume(&self, name: &str) -> ClientResult<MissingVolume> {
        let path = paths::of_volume(paths::VOLUME_STANDBY, name);
        self.request_within(DRILL_TIME_MAX, Method::POST, &path, None::<&()>).await
    }

    /// Pins ranges of a volume.
    fn pin_volume(&self, name: &str, request: &PinRequest) -> ClientResult<VolumeStatus> {
        self.request(Method::POST, &paths::of_volume(paths::VOLUME_PIN, name), Some(request)).await
    }

    /// Unpins ranges of a volume.
    fn unpin_volume(&self, name: &str, request: &PinRequest) -> ClientResult<VolumeStatus> {
        let path = paths::of_volume(paths::VOLUME_UNPIN, name);
        self.request(Method::POST, &path, Some(request)).await
    }

    /// The site that the server watches.
    fn site(&self) -> ClientResult<SiteStatus> {
        self.query(paths::SITE).await
    }

    /// The progress of the analysis.
    fn analysis(&self) -> ClientResult<AnalysisStatus> {
        self.query(paths::ANALYSIS).await
    }

    /// The analysis with all that it has counted.
    fn analysis_result(&self) -> ClientResult<Analysis> {
        self.query(paths::ANALYSIS_RESULT).await
    }

    /// Starts an analysis.
    fn start_analysis(&self, request: &AnalysisRequest) -> ClientResult<AnalysisStatus> {
        self.request(Method::POST, paths::ANALYSIS, Some(request)).await
    }

    /// Stops the analysis.
    fn stop_analysis(&self) -> ClientResult<AnalysisStatus> {
        self.request(Method::DELETE, paths::ANALYSIS, None::<&()>).await
    }

    /// Rehearses a power failure.
    fn drill(&self) -> ClientResult<DrillReport> {
        self.request_within(DRILL_TIME_MAX, Method::POST, paths::DRILL, None::<&()>).await
    }

    /// The last slow requests of the clients of one volume, or of all.
    fn slow_requests(&self, name: Option<&str>) -> ClientResult<SlowRequests> {
        match name {
            None => self.query(paths::SLOW).await,
            Some(name) => self.query(&paths::of_volume(paths::VOLUME_SLOW, name)).await,
        }
    }

    /// The connected clients.
    fn clients(&self) -> ClientResult<ConnectedClients> {
        self.query(paths::CLIENTS).await
    }

    /// Disconnects a client, and returns what it was.
    fn disconnect_client(&self, id: u64) -> ClientResult<ConnectedClient> {
        self.request(Method::DELETE, &paths::of_client(id), None::<&()>).await
    }

    /// Flushes all volumes and stops the server. With `force`, even if clients are connected.
    fn stop(&self, force: bool, progress: impl FnMut(Progress) + Send) -> ClientResult<()> {
        self.operate(Method::POST, &paths::with_force(paths::STOP, force), progress).await
    }

    /// Applies the changes of the configuration file. Unless `removes`, this is refused if they
    /// would remove more than half of the volumes.
    fn reload(&self, removes: bool) -> ClientResult<()> {
        let path = if removes { paths::RELOAD_REMOVE } else { paths::RELOAD };
        self.operate(Method::POST, path, |_| ()).await
    }

    /// Hands the pool over to a new server, the program now at the server's path. Returns when that
    /// program is about to start.
    fn upgrade(&self) -> ClientResult<()> {
        self.operate(Method::POST, paths::UPGRADE, |_| ()).await
    }
}
