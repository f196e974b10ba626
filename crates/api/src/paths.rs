//! The paths of requests, for the server, the client and the description.

use std::fmt::Write;

/// `GET`: the status of the server.
pub const STATUS: &str = "/v1/status";
/// `GET`: what the other servers of a site want to know of this one.
pub const HOST: &str = "/v1/host";
/// `GET`: the site that the server watches.
pub const SITE: &str = "/v1/site";
/// `GET`: the statistics of the volumes over time.
pub const STATISTICS: &str = "/v1/statistics";
/// `GET`: the figures of the server as metrics for Prometheus.
pub const METRICS: &str = "/metrics";
/// `PATCH`: change settings of the server.
pub const SETTINGS: &str = "/v1/settings";
/// `GET`: all volumes. `POST`: add one.
pub const VOLUMES: &str = "/v1/volumes";
/// `GET`, `PATCH`, `DELETE`: one volume.
pub const VOLUME: &str = "/v1/volumes/{name}";
/// `GET`: the past of all volumes together, interval by interval.
pub const HISTORY: &str = "/v1/history";
/// `GET`: the past of a volume, interval by interval.
pub const VOLUME_HISTORY: &str = "/v1/volumes/{name}/history";
/// `GET`: the statistics of a volume over time.
pub const VOLUME_STATISTICS: &str = "/v1/volumes/{name}/statistics";
/// `GET`: the slow requests of the clients of a volume.
pub const VOLUME_SLOW: &str = "/v1/volumes/{name}/slow";
/// `POST`: flush a volume: destage all dirty data and flush its disk.
pub const VOLUME_FLUSH: &str = "/v1/volumes/{name}/flush";
/// `POST`: save a volume in memory to its image.
pub const VOLUME_SAVE: &str = "/v1/volumes/{name}/save";
/// `POST`: serve a volume on a block device that the kernel has made for it.
pub const VOLUME_DEVICE: &str = "/v1/volumes/{name}/device";
/// `POST`: where the kernel's NBD client connects a block device to a volume.
pub const VOLUME_NBD_DEVICE: &str = "/v1/volumes/{name}/nbd-device";
/// `POST`: give up what a volume's disk does not take, and remove the volume.
pub const VOLUME_DISCARD: &str = "/v1/volumes/{name}/discard";
/// `POST`: trust a disk again after it failed a flush.
pub const VOLUME_TRUST: &str = "/v1/volumes/{name}/trust";
/// `POST`: measure a volume's disk.
pub const VOLUME_CALIBRATE: &str = "/v1/volumes/{name}/calibrate";
/// `POST`: make a volume as large as its disk, which has grown.
pub const VOLUME_RESIZE: &str = "/v1/volumes/{name}/resize";
/// `POST`: serve a volume that another host has, and shut that host out.
pub const VOLUME_TAKEOVER: &str = "/v1/volumes/{name}/takeover";
/// `POST`: end the service of a volume, so that another host can take it over.
pub const VOLUME_STANDBY: &str = "/v1/volumes/{name}/standby";
/// `POST`: pin ranges of a volume.
pub const VOLUME_PIN: &str = "/v1/volumes/{name}/pin";
/// `POST`: unpin ranges of a volume.
pub const VOLUME_UNPIN: &str = "/v1/volumes/{name}/unpin";
/// `GET`: the progress of the analysis. `POST`: start one. `DELETE`: stop it.
pub const ANALYSIS: &str = "/v1/analysis";
/// `GET`: the analysis with all that it has counted.
pub const ANALYSIS_RESULT: &str = "/v1/analysis/result";
/// `POST`: rehearse a power failure.
pub const DRILL: &str = "/v1/drill";
/// `GET`: the slow requests of the clients of all volumes.
pub const SLOW: &str = "/v1/slow";
/// `GET`: the connected clients.
pub const CLIENTS: &str = "/v1/clients";
/// `DELETE`: disconnect one client.
pub const CLIENT: &str = "/v1/clients/{id}";
/// `POST`: record the requests of clients.
pub const TRACE: &str = "/v1/trace";
/// `POST`: flush all volumes and stop the server.
pub const STOP: &str = "/v1/stop";
/// `POST`: apply the changes of the configuration file. Refused if they would remove more than half
/// of the volumes.
pub const RELOAD: &str = "/v1/reload";
/// `POST`: apply the changes of the configuration file, however many volumes they remove.
pub const RELOAD_REMOVE: &str = "/v1/reload/remove";
/// `POST`: hand the pool over to a new server, the program now at the server's path, and exit.
pub const UPGRADE: &str = "/v1/upgrade";
/// `GET`: the description of this interface.
pub const OPENAPI: &str = "/v1/openapi.json";

/// A path below [`VOLUME`], of the volume `name`.
pub fn of_volume(path: &str, name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        // Every other byte is escaped, including `/` and all bytes of non-ASCII characters.
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    path.replace("{name}", &escaped)
}

/// The path of the client `id`, as [`CLIENT`] has it.
pub fn of_client(id: u64) -> String {
    CLIENT.replace("{id}", &id.to_string())
}

/// The path of a request that disconnects clients only if `force` is set.
pub fn with_force(path: &str, force: bool) -> String {
    format!("{path}{}", if force { "?force=true" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_a_path() {
        assert_eq!(of_volume(VOLUME, "disk-1.img"), "/v1/volumes/disk-1.img");
        assert_eq!(of_client(17), "/v1/clients/17");
        assert_eq!(of_volume(VOLUME_FLUSH, "a/b ü%?"), "/v1/volumes/a%2Fb%20%C3%BC%25%3F/flush");
    }
}
