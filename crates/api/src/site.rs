//! The servers of a site seen together: what each tells the others, and what one that watches them
//! knows.

use crate::{Alert, DurabilityClass, VolumeState};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a host does for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostRole {
    /// It serves the volume.
    Serves,
    /// It serves it from a takeover on.
    Standby,
    /// It had the volume, and another host has taken it over.
    TakenOver,
    /// It cannot serve it, and tries again.
    #[default]
    Missing,
}

impl fmt::Display for HostRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serves => "serves",
            Self::Standby => "standby",
            Self::TakenOver => "taken over",
            Self::Missing => "missing",
        })
    }
}

/// A volume, as a host tells the others of its site.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostVolume {
    /// Its name.
    pub name: String,
    /// Its backing store.
    pub backing: String,
    /// What the host does for it.
    pub role: HostRole,
    /// Whether its disk can have one owner among several hosts, so that its name stands for the
    /// same volume on all of them.
    pub shared: bool,
    /// The state of its service; `serving` unless the host serves it.
    pub state: VolumeState,
    /// Its size; 0 unless it is served.
    pub size_bytes: u64,
    /// What is lost of acknowledged writes if the host is lost.
    pub class: DurabilityClass,
    /// Bytes that are not on the disk.
    pub dirty_bytes: u64,
    /// Reads and writes of clients.
    pub requests: u64,
    /// Those of them that were served from memory.
    pub hits: u64,
}

/// What a host tells the others of its site.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostStatus {
    /// The name of the machine.
    pub host: String,
    /// The version of the server.
    pub version: String,
    /// Its uptime.
    pub uptime_seconds: u64,
    /// Memory of the cache: the limit.
    pub limit_bytes: u64,
    /// Memory of the cache that holds data.
    pub used_bytes: u64,
    /// Connected clients.
    pub connections: u64,
    /// The volumes that it serves, and those that it may have to serve.
    pub volumes: Vec<HostVolume>,
    /// What is wrong with it, the most serious first, without what is wrong with other hosts.
    pub alerts: Vec<Alert>,
}

/// A host of the site, as the server that watches it knows it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteHost {
    /// Its name: that of the machine, or its address until it has answered. Different among the
    /// hosts.
    pub name: String,
    /// The address of its dashboard.
    pub address: String,
    /// Whether it answers.
    pub answers: bool,
    /// Since when it has answered, or has not; how long the server has watched it if that never
    /// changed.
    pub seconds: u64,
    /// Why it has not answered the last question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<HostStatus>,
}

/// What a host does for a volume, by the host's name.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteRole {
    /// The name of the host.
    pub host: String,
    /// What it does, or did when it last answered.
    pub role: HostRole,
    /// Whether it answers.
    pub answers: bool,
}

/// A volume of the site: a shared one once, however many hosts know it, and any other one of each
/// host.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteVolume {
    /// As the host that serves it tells, or else one that knows it.
    pub volume: HostVolume,
    /// The hosts that know it, those that serve it first.
    pub hosts: Vec<SiteRole>,
    /// For how long no host that answers has served it; null while one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved_seconds: Option<u64>,
}

/// The site.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteStatus {
    /// The hosts, by name.
    pub hosts: Vec<SiteHost>,
    /// The volumes, by name.
    pub volumes: Vec<SiteVolume>,
    /// What is wrong with the site as a whole, the most serious first.
    pub alerts: Vec<Alert>,
}

/// A summary of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteSummary {
    /// Its hosts.
    pub hosts: u64,
    /// Those that answer.
    pub answering: u64,
    /// Its volumes.
    pub volumes: u64,
    /// Those that no host that answers serves.
    pub unserved: u64,
}

impl SiteStatus {
    /// Hosts and volumes counted.
    pub fn summary(&self) -> SiteSummary {
        let answering = self.hosts.iter().filter(|host| host.answers).count();
        let unserved = self.volumes.iter().filter(|it| it.unserved_seconds.is_some()).count();
        SiteSummary {
            hosts: self.hosts.len() as u64,
            answering: answering as u64,
            volumes: self.volumes.len() as u64,
            unserved: unserved as u64,
        }
    }
}
