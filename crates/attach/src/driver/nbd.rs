//! Devices of the kernel's NBD client.
//!
//! One connection, without a timeout of the driver: only then the kernel repeats a request if, and
//! only if, its connection has been replaced. This module replaces a connection after it has ended,
//! and once the server that had it has ended, too, or has carried out all requests of it. So a
//! write is never carried out after its repetition, and no older write after a newer one.
//! `docs/decisions/0049` has the details of the driver.

use super::nbd_connection::NbdConnection;
use super::netlink::{Change, NbdNetlink, NewDevice};
use crate::device::{AttachPlan, WatchedDevice, WatchedState, load_module};
use crate::record::{
    self, AttachRecord, AttachedVolume, KernelDevice, NbdTerms, RecordedConnection,
};
use anyhow::{Context, Error, bail, ensure};
use forebay_api::{
    BlockingClient, ConnectDevice, ConnectedClient, ConnectedDevice, DeviceConnection,
};
use forebay_nbd::client::OpenExport;
use forebay_nbd::proto::export_flag;
use forebay_terminal::with_remedy;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How old a request is when the kernel looks whether its connection has been replaced, and how
/// often it does so then. It does so at full seconds, and logs a line for each such request.
const REQUEST_AGE_MS: u32 = 2000;
/// The least time between the end of a connection and its replacement. In the kernel, the thread
/// that receives of the old one must have seen its end: it would take the new one's bytes.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// For how long a connection is offered to the kernel, which answers the same whether it has taken
/// it or does not need one yet.
const OFFER_TIME: Duration = Duration::from_secs(2);
/// The longest wait for a server that the kernel is told: a century. It multiplies seconds with up
/// to 1000, and the result must fit in 63 bits.
const WAIT_SECONDS_MAX: u64 = 100 * 365 * 24 * 60 * 60;
/// How much later than the watcher the kernel gives up, if the watcher has ended.
const WAIT_SECONDS_MORE: u64 = 5;
/// The longest request, in KiB, as of a ublk device; the kernel's default is 128.
const REQUEST_KIB_MAX: u32 = 1024;

/// A device, and the connection that the kernel has of it.
pub(super) struct NbdDevice {
    netlink: NbdNetlink,
    volume: String,
    /// The server's control socket.
    socket: PathBuf,
    terms: NbdTerms,
    /// What the kernel identifies it by.
    identity: String,
    wait_seconds: u64,
    /// The connection that was made here.
    connection: Option<(NbdConnection, u32)>,
    /// Since when the connection has ended. `None` also if it was made elsewhere.
    ended: Option<Instant>,
    /// Until when the connection is offered to the kernel.
    offer_until: Instant,
}

impl NbdDevice {
    /// Checks that the kernel has the client. Loads it if it is a module.
    pub(super) fn check() -> anyhow::Result<()> {
        open_netlink().map(drop)
    }

    pub(super) fn open(
        attached: &AttachedVolume,
        terms: NbdTerms,
        limit: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let wait = limit.map_or(WAIT_SECONDS_MAX, |limit| limit.as_secs() + WAIT_SECONDS_MORE);
        Ok(Self {
            netlink: open_netlink()?,
            volume: attached.volume.clone(),
            socket: attached.socket.clone(),
            terms,
            identity: identity(&attached.volume, &attached.socket),
            wait_seconds: wait.min(WAIT_SECONDS_MAX),
            connection: None,
            ended: None,
            offer_until: Instant::now(),
        })
    }

    pub(super) fn make(
        client: &BlockingClient,
        plan: &AttachPlan,
        record: &mut AttachRecord,
    ) -> anyhow::Result<(Self, AttachedVolume)> {
        if plan.queues.is_some() || plan.depth.is_some() {
            let message = "a device of the kernel's NBD client has one queue of its own depth";
            return Err(with_remedy(Error::msg(message), "omit --queues and --depth"));
        }
        let (connection, offer, opened) = connect(client, &plan.volume, None)?;
        let recorded = identify(client, &plan.volume, &connection, &offer)?;
        record::write_connection(&plan.volume, &recorded).context("cannot record the device")?;
        // Its number is not known yet.
        let block_bytes = offer.device.logical_block_bytes.max(opened.block_min);
        let mut terms = NbdTerms { index: 0, flags: opened.flags, block_bytes };
        let attached = plan.attached(KernelDevice::Nbd(terms));
        let mut device = Self::open(&attached, terms, plan.limit)?;
        terms.index = device.connect(&connection, offer.device.size_bytes)?;
        device.terms = terms;
        device.connection = Some((connection, offer.device.pid));
        let attached = plan.attached(KernelDevice::Nbd(terms));
        let made = device.prepare(&offer).and_then(|()| Ok(record.write(&attached)?));
        if let Err(error) = made {
            // Nothing has used the device.
            let _ = device.netlink.disconnect(terms.index);
            let _ = record.clear();
            return Err(error);
        }
        // Has the kernel look for partitions while a server answers.
        let _ = File::open(attached.device());
        attached.announce();
        Ok((device, attached))
    }

    /// Has the kernel make the device, and returns its number.
    fn connect(&mut self, connection: &NbdConnection, size_bytes: u64) -> anyhow::Result<u32> {
        let made = self.netlink.connect(&NewDevice {
            size_bytes,
            block_bytes: self.terms.block_bytes,
            flags: self.terms.flags,
            wait_seconds: self.wait_seconds,
            identity: &self.identity,
            socket: connection.fd(),
        });
        made.map_err(|error| {
            let message = format!("the kernel's NBD client makes no device: {error}");
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => "run the command as root",
                _ => "see the kernel's log with `dmesg`",
            };
            with_remedy(Error::msg(message), remedy)
        })
    }

    /// Checks and tunes a device that has just been made.
    fn prepare(&self, offer: &ConnectedDevice) -> anyhow::Result<()> {
        if !self.is_ours() {
            let message = "the kernel's NBD client does not say which device is whose";
            return Err(with_remedy(Error::msg(message), "use Linux 5.14 or later"));
        }
        self.set_request_age()?;
        // For speed only.
        let _ = self.set("max_sectors_kb", REQUEST_KIB_MAX);
        let _ = self.set("rotational", u32::from(offer.device.rotational));
        Ok(())
    }

    fn set(&self, setting: &str, value: u32) -> io::Result<()> {
        std::fs::write(self.folder().join("queue").join(setting), value.to_string())
    }

    fn set_request_age(&self) -> anyhow::Result<()> {
        let set = self.set("io_timeout", REQUEST_AGE_MS);
        set.context("cannot set the age at which the kernel examines requests")
    }

    fn folder(&self) -> PathBuf {
        Path::new("/sys/block").join(format!("nbd{}", self.terms.index))
    }

    /// Whether the device of this number is the one that was made for the volume.
    fn is_ours(&self) -> bool {
        let backend = std::fs::read_to_string(self.folder().join("backend"));
        backend.is_ok_and(|backend| backend.trim_end() == self.identity)
    }

    /// Whether the server has the connection that another process has made.
    fn state_elsewhere(&self) -> WatchedState {
        let recorded = record::connection_of(&self.volume);
        let server = BlockingClient::new(&self.socket).ok();
        let live = server
            .zip(recorded)
            .filter(|(server, recorded)| is_listed(server, &self.volume, recorded));
        // Not the process that the connection was made to, if another one has taken it over.
        let pid = live.and_then(|(server, _)| Some(server.status().ok()?.pid));
        pid.map_or(WatchedState::Waiting, WatchedState::Live)
    }

    /// Takes requests back from a connection that has ended, so that they need not wait for their
    /// age when there is the next one, and are not logged meanwhile. Returns false if the device is
    /// no longer connected.
    fn take_requests_back(&mut self) -> anyhow::Result<bool> {
        self.change(&Change { timeout: Some(1), ..Change::default() })
    }

    fn change(&mut self, change: &Change) -> anyhow::Result<bool> {
        match self.netlink.reconfigure(self.terms.index, &self.identity, change) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(Error::new(error).context("the kernel's NBD client does not answer")),
        }
    }

    /// Hands a connection to the kernel, which waits for one.
    fn hand_over(&mut self, connection: &NbdConnection) -> anyhow::Result<()> {
        // With this connection, no request is taken back for its age. The kernel sets the timeouts
        // first.
        let (timeout, wait_seconds) = (Some(0), Some(self.wait_seconds));
        let socket = Some(connection.fd());
        let is_there = self.change(&Change { timeout, wait_seconds, socket, size_bytes: None })?;
        ensure!(is_there, "the device has been disconnected");
        // Afterwards: it waits for whoever changes the device's scheduler, who waits for requests.
        self.set_request_age()
    }

    fn offer(&mut self, connection: &NbdConnection) -> anyhow::Result<()> {
        self.change(&Change { socket: Some(connection.fd()), ..Change::default() }).map(drop)
    }

    /// Whether the kernel has certainly finished with the connection that has ended.
    fn has_settled(&self) -> bool {
        let unread = self.connection.as_ref().is_some_and(|(it, _)| it.has_unread());
        !unread && self.ended.is_some_and(|ended| ended.elapsed() >= SETTLE_TIME)
    }

    /// Checks that a volume is what the kernel has been told of it.
    fn check_same(&self, opened: &OpenExport) -> anyhow::Result<()> {
        ensure!(
            !lost(self.terms.flags, opened.flags) && opened.block_min <= self.terms.block_bytes,
            "the server does not offer all that the device has: flags {:#x} instead of {:#x}, \
             blocks of {} instead of {} bytes",
            opened.flags,
            self.terms.flags,
            opened.block_min,
            self.terms.block_bytes
        );
        Ok(())
    }
}

impl WatchedDevice for NbdDevice {
    fn state(&mut self) -> anyhow::Result<WatchedState> {
        if !self.is_ours() {
            return Ok(WatchedState::Gone);
        }
        match &self.connection {
            Some(_) if self.ended.is_some() => {}
            Some((connection, pid)) if !connection.wait_for_end(Duration::ZERO) => {
                return Ok(WatchedState::Live(*pid));
            }
            Some(_) => self.ended = Some(Instant::now()),
            None if self.ended.is_none() => return Ok(self.state_elsewhere()),
            None => {}
        }
        // A device that was disconnected may be open still. After another error, as for lack of
        // memory, the watcher has to go on: only it can end the wait.
        let is_there = self.take_requests_back().unwrap_or(true);
        Ok(if is_there { WatchedState::Waiting } else { WatchedState::Gone })
    }

    fn wait(&mut self, time: Duration) {
        let Some((connection, pid)) = self.connection.take().filter(|_| self.ended.is_none())
        else {
            return std::thread::sleep(time);
        };
        if connection.wait_for_end(time) {
            self.ended = Some(Instant::now());
        } else if Instant::now() < self.offer_until {
            // If the driver refuses, the state of the device says so.
            let _ = self.offer(&connection);
        }
        self.connection = Some((connection, pid));
    }

    /// Ends the connection that the other process has made: only the end of its own is seen here.
    fn adopt(&mut self, client: &BlockingClient) -> anyhow::Result<()> {
        if let Some(recorded) = record::connection_of(&self.volume)
            && is_listed(client, &self.volume, &recorded)
        {
            // It may have ended meanwhile. Until it has, `give` is refused.
            let _ = client.disconnect_client(recorded.connection.client);
        }
        self.ended = Some(Instant::now());
        Ok(())
    }

    fn give(&mut self, client: &BlockingClient) -> anyhow::Result<u32> {
        ensure!(self.has_settled(), "the kernel has not seen the end of the last connection yet");
        let replaces = record::connection_of(&self.volume).map(|recorded| recorded.connection);
        let (connection, offer, opened) = connect(client, &self.volume, replaces)?;
        self.check_same(&opened)?;
        let recorded = identify(client, &self.volume, &connection, &offer)?;
        record::write_connection(&self.volume, &recorded).context("cannot record the device")?;
        self.hand_over(&connection)?;
        self.connection = Some((connection, offer.device.pid));
        self.ended = None;
        self.offer_until = Instant::now() + OFFER_TIME;
        Ok(offer.device.pid)
    }

    fn fixed_size(&mut self) -> anyhow::Result<Option<String>> {
        Ok(None)
    }

    fn grow(&mut self, size_bytes: u64) -> anyhow::Result<()> {
        let is_there =
            self.change(&Change { size_bytes: Some(size_bytes), ..Change::default() })?;
        ensure!(is_there, "the device has been disconnected");
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        let removed = self.netlink.disconnect(self.terms.index);
        removed.context("the kernel's NBD client does not disconnect the device")
    }
}

fn open_netlink() -> anyhow::Result<NbdNetlink> {
    let opened = NbdNetlink::open().or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            load_module("nbd");
            NbdNetlink::open()
        }
        _ => Err(error),
    });
    opened.map_err(|error| {
        let message = format!("the kernel's NBD client cannot be used: {error}");
        let remedy = "load it with `modprobe nbd` (CONFIG_BLK_DEV_NBD), and use the network \
                      namespace of the host, not that of a container";
        with_remedy(Error::msg(message), remedy)
    })
}

/// What identifies the device of a volume.
fn identity(volume: &str, socket: &Path) -> String {
    format!("forebay volume {volume} of {}", socket.display())
}

/// Connects to a volume of the server.
fn connect(
    client: &BlockingClient,
    volume: &str,
    replaces: Option<DeviceConnection>,
) -> anyhow::Result<(NbdConnection, ConnectedDevice, OpenExport)> {
    let offer = client.connect_device(volume, &ConnectDevice { replaces })?;
    let (connection, opened) = NbdConnection::open(&offer, volume)?;
    ensure!(
        opened.size_bytes == offer.device.size_bytes,
        "the server's NBD listener has another volume '{volume}', with {} instead of {} bytes",
        opened.size_bytes,
        offer.device.size_bytes
    );
    Ok((connection, offer, opened))
}

/// What the server lists a connection as.
fn identify(
    client: &BlockingClient,
    volume: &str,
    connection: &NbdConnection,
    offer: &ConnectedDevice,
) -> anyhow::Result<RecordedConnection> {
    let listed = client.clients()?.clients;
    let Some(number) = number_of(&listed, volume, connection.address()) else {
        bail!("the server does not list the connection to volume '{volume}'")
    };
    let connection = DeviceConnection { instance: offer.instance, client: number };
    Ok(RecordedConnection { pid: offer.device.pid, connection })
}

/// The number of the newest client of a volume that this process, or that address, has connected.
/// A server in another namespace does not know the process.
fn number_of(clients: &[ConnectedClient], volume: &str, address: Option<&str>) -> Option<u64> {
    let own = std::process::id();
    let ours = clients.iter().filter(|client| {
        client.volume.as_deref() == Some(volume)
            && client.address.as_deref() == address
            && client.process.is_none_or(|process| process == own)
    });
    ours.map(|client| client.id).max()
}

/// Whether the server has a connection of a volume, because that was made to it, or to the server
/// whose connections it has taken over.
fn is_listed(server: &BlockingClient, volume: &str, recorded: &RecordedConnection) -> bool {
    server.clients().is_ok_and(|listed| match listed.instance {
        // A former version takes none over.
        0 => {
            let is_same = server.status().is_ok_and(|status| status.pid == recorded.pid);
            is_same && is_among(&listed.clients, volume, recorded.connection)
        }
        instance => {
            let connection = recorded.connection;
            instance == connection.instance && is_among(&listed.clients, volume, connection)
        }
    })
}

fn is_among(clients: &[ConnectedClient], volume: &str, connection: DeviceConnection) -> bool {
    let mut of_volume = clients.iter().filter(|it| it.volume.as_deref() == Some(volume));
    of_volume.any(|it| it.id == connection.client)
}

/// Whether the kernel would send requests that the server refuses.
fn lost(had: u16, has: u16) -> bool {
    let abilities = export_flag::SEND_FLUSH
        | export_flag::SEND_FUA
        | export_flag::SEND_TRIM
        | export_flag::SEND_WRITE_ZEROES;
    had & abilities & !has != 0 || has & export_flag::READ_ONLY & !had != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_of_a_device_is_found_among_the_clients() {
        let own = std::process::id();
        let client = |id, volume: &str, process, address: Option<&str>| ConnectedClient {
            id,
            volume: Some(volume.into()),
            process,
            address: address.map(str::to_owned),
            ..ConnectedClient::default()
        };
        let (other, here) = (Some(own + 1), Some("127.0.0.1:5"));
        let clients = [
            client(1, "db", Some(own), None),
            client(2, "db", Some(own), None),
            client(3, "db", other, None),
            client(4, "other", Some(own), None),
            client(5, "db", None, here),
            client(6, "db", None, Some("127.0.0.1:6")),
        ];
        assert_eq!(number_of(&clients, "db", None), Some(2));
        assert_eq!(number_of(&clients, "db", here), Some(5));
        assert_eq!(number_of(&clients, "none", None), None);
        assert_eq!(number_of(&[client(7, "db", None, None)], "db", None), Some(7));
    }

    #[test]
    fn a_server_has_to_offer_what_the_kernel_was_told() {
        let all = export_flag::HAS_FLAGS | export_flag::SEND_FLUSH | export_flag::SEND_TRIM;
        assert!(!lost(all, all | export_flag::SEND_FUA));
        assert!(lost(all, all & !export_flag::SEND_TRIM));
        assert!(lost(all, all | export_flag::READ_ONLY));
        assert!(!lost(all | export_flag::READ_ONLY, all));
        assert!(!lost(all | export_flag::SEND_CACHE, all), "the kernel does not use it");
    }

    #[test]
    fn a_century_can_be_counted_in_ticks_of_the_kernel() {
        assert!(WAIT_SECONDS_MAX.checked_mul(1000).is_some_and(|ticks| ticks < 1 << 62));
    }
}
