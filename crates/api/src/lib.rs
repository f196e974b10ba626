//! The control API: its types and its client.
//!
//! The API is HTTP/1.1 with JSON over a Unix socket, `control.sock` in the state directory.
//! Permission to open the socket is permission for all requests. This crate has the types of
//! requests and answers, and their [`paths`]; the server's crate describes both. A copy of that
//! description is in `openapi.json`; a test fails if it differs.
//!
//! Long operations, such as stopping the server or removing or flushing a volume, take as long as
//! the disks take. They answer with newline-delimited JSON (`application/x-ndjson`), one [`Event`]
//! per line: `running` until there is progress, then `progress`, and as the last line `done` or
//! `error`. So a shell script can follow the progress line by line. A stream that ends without
//! either line was cut off, and the client reports that. A request that fails at once, for example
//! for an unknown volume, is answered with an HTTP status instead of a stream.

#![deny(missing_docs)]

mod alert;
mod analysis;
mod background;
mod blocking;
mod cache_ratio;
mod client;
mod connected;
mod curve;
mod device;
mod division;
mod error;
mod gather;
mod geometry;
mod history;
mod journal;
mod learn;
pub mod paths;
mod patrol;
mod pins;
mod power;
mod request;
mod requests;
mod saved;
mod settings;
mod site;
mod slow;
mod statistics;
mod status;
mod trace;
mod vault;
mod volume_state;
mod warm_up;
mod write_back;

pub use alert::{Alert, Severity};
pub use analysis::{
    Analysis, AnalysisBatch, AnalysisInterruption, AnalysisPhase, AnalysisRequest, AnalysisState,
    AnalysisStatus, AnalysisSubject, AnalysisVolume, AnalyzedVolume, CacheOff, SizeTimes,
};
pub use background::{BackgroundShare, BackgroundStatus};
pub use blocking::BlockingClient;
pub use cache_ratio::CacheRatio;
pub use client::{Client, ClientError};
pub use connected::{ConnectedClient, ConnectedClients};
pub use curve::{CurvePoint, CurveStatus, MemoryAdvice, MemoryOutlook};
pub use device::{
    ConnectDevice, ConnectedDevice, DeviceConnection, ServeDevice, ServedDevice, VolumeSize,
};
pub use division::{PoolDivision, VolumePart};
pub use error::{ErrorBody, ErrorKind, Problem};
pub use gather::{GatherSource, GatherStatus};
pub use geometry::{GeometrySource, GeometryStatus};
pub use history::{History, HistoryPoint};
pub use journal::{JournalState, JournalStatus, UnservedWrites};
pub use learn::{ForecastScore, ForecastStatus, LearnState, LearnStatus};
pub use patrol::{Damage, PatrolStatus};
pub use pins::{PinState, PinStatus};
pub use power::{PowerStatus, UpsStatus};
pub use request::{
    AddVolume, DiscardRequest, Discarded, Done, Event, PinRequest, Progress, Running,
    ServerSettings,
};
pub use saved::SavedStatus;
pub use settings::VolumeSettings;
pub use site::{
    HostRole, HostStatus, HostVolume, SiteHost, SiteRole, SiteStatus, SiteSummary, SiteVolume,
};
pub use slow::{SlowRequest, SlowRequests, SlowWait, WaitingRequest};
pub use statistics::{
    BackendIos, Counters, DiskUse, IoPattern, Latencies, LatencyBucket, LatencyHistogram,
    LatencySummary, PeriodStatistics, Periods, SizeClass, Statistics, StatisticsOfVolume,
};
pub use status::{
    DiskStall, LogStatus, Memory, MemorySizing, MemoryState, MissingVolume, Status, VolumeList,
    VolumeStatus,
};
pub use trace::{TRACE_BYTES_MIN, TRACE_SECONDS_MAX, TraceEnd, TraceRequest, TraceSummary};
pub use vault::{DrillReport, DumpSummary, HeldVolume, VaultState, VaultStatus};
pub use volume_state::{DurabilityClass, Mode, VolumeState};
pub use warm_up::{WarmUpState, WarmUpStatus};
pub use write_back::{GovernorStatus, WriteBackFigures};

forebay_types::faults! { ClientError, Problem }
