use super::*;
use nvme::{NvmeCommand, NvmeNamespace};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A disk with reservations of the type that is used here, by SPC-4.
#[derive(Default)]
struct ModelDisk {
    /// The keys of hosts.
    registered: BTreeMap<u32, ReservationKey>,
    holder: Option<u32>,
    /// How many times a host has been registered anew.
    registrations: u32,
}

impl ModelDisk {
    fn insert(&mut self, host: u32, key: ReservationKey) {
        if self.registered.insert(host, key).is_none() {
            self.registrations += 1;
        }
    }
}

/// The disk, as one host sees it.
#[derive(Clone)]
struct ModelHost(Arc<Mutex<ModelDisk>>, u32);

impl ModelHost {
    fn disk(&self) -> MutexGuard<'_, ModelDisk> {
        self.0.lock().unwrap()
    }
}

/// A host with a disk of any kind.
trait TestHost: ReservationCall + Clone + Send + 'static {
    fn model(&self) -> &ModelHost;

    fn can_write(&self) -> bool {
        let ModelHost(_, host) = self.model();
        let disk = self.model().disk();
        disk.holder.is_none() || disk.registered.contains_key(host)
    }

    /// How many times hosts of the disk have been registered anew.
    fn registrations(&self) -> u32 {
        self.model().disk().registrations
    }
}

impl TestHost for ModelHost {
    fn model(&self) -> &Self {
        self
    }
}

impl ReservationCall for ModelHost {
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> device::ReservationResult {
        let mut disk = self.disk();
        if old.is_some() && disk.registered.get(&self.1) != old.as_ref() {
            return Err(ReservationFault::Conflict);
        }
        match new {
            Some(key) => disk.insert(self.1, key),
            None => {
                disk.registered.remove(&self.1);
                disk.holder = disk.holder.filter(|holder| *holder != self.1);
            }
        }
        Ok(())
    }

    fn reserve(&self, key: ReservationKey) -> device::ReservationResult {
        let mut disk = self.disk();
        let is_registered = disk.registered.get(&self.1) == Some(&key);
        if !is_registered || disk.holder.is_some_and(|holder| holder != self.1) {
            return Err(ReservationFault::Conflict);
        }
        disk.holder = Some(self.1);
        Ok(())
    }

    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> device::ReservationResult {
        let mut disk = self.disk();
        if disk.registered.get(&self.1) != Some(&key) {
            return Err(ReservationFault::Conflict);
        }
        match disk.holder {
            Some(holder) if disk.registered.get(&holder) == Some(&former) => {
                disk.registered.remove(&holder);
                disk.holder = Some(self.1);
                Ok(())
            }
            _ => Err(ReservationFault::Conflict),
        }
    }

    fn holder(&self) -> device::ReservationResult<Option<ReservationKey>> {
        let disk = self.disk();
        Ok(disk.holder.and_then(|holder| disk.registered.get(&holder).copied()))
    }
}

/// The same of NVMe, by its commands: host identifiers of 128 bits, or of 64.
#[derive(Clone)]
struct ModelController {
    disk: ModelHost,
    has_short_identifiers: bool,
}

const CONFLICT: u16 = 0x83;
const INVALID_FIELD: u16 = 0x02;
const HOST_IDENTIFIER_FORMAT: u16 = 0x18;

impl ModelController {
    fn register(&self, word10: u32, current: u64, new: u64) -> u16 {
        let (mut disk, host) = (self.disk.disk(), self.disk.1);
        let registered = disk.registered.get(&host).map(|key| key.0);
        let is_key_ignored = word10 & 8 != 0;
        let is_known = registered.is_some_and(|key| key == current || is_key_ignored);
        match word10 & 7 {
            0 if registered.is_some_and(|key| key != new) => return CONFLICT,
            1 | 2 if !is_known => return CONFLICT,
            1 => {
                disk.registered.remove(&host);
                disk.holder = disk.holder.filter(|holder| *holder != host);
            }
            // A key of 0 is one as any other, and ends no registration.
            0 | 2 => disk.insert(host, ReservationKey(new)),
            _ => return INVALID_FIELD,
        }
        0
    }

    fn acquire(&self, word10: u32, current: u64, former: u64) -> u16 {
        let (current, former) = (ReservationKey(current), ReservationKey(former));
        let acquired = match (word10 & 7, word10 >> 8 & 0xff) {
            (0, 3) => self.disk.reserve(current),
            (2, 3) => self.disk.preempt(current, former),
            _ => return INVALID_FIELD,
        };
        if acquired.is_ok() { 0 } else { CONFLICT }
    }

    fn report(&self, word10: u32, word11: u32, data: &mut [u8]) -> u16 {
        if (word11 & 1 == 0) != self.has_short_identifiers {
            return HOST_IDENTIFIER_FORMAT;
        }
        assert_eq!(data.len(), 4 * (word10 as usize + 1));
        let disk = self.disk.disk();
        let mut report = vec![7, 0, 0, 0, if disk.holder.is_some() { 3 } else { 0 }];
        report.extend((disk.registered.len() as u16).to_le_bytes());
        let (head, entry) = if self.has_short_identifiers { (24, 24) } else { (64, 64) };
        report.resize(head, 0);
        for (host, key) in &disk.registered {
            let begin = report.len();
            let is_holder = disk.holder == Some(*host);
            report.extend([0xff, 0xff, u8::from(is_holder), 0, 0, 0, 0, 0]);
            if self.has_short_identifiers {
                report.extend(u64::from(*host).to_le_bytes());
            }
            report.extend(key.0.to_le_bytes());
            report.resize(begin + entry, 0);
        }
        let length = report.len().min(data.len());
        data[..length].copy_from_slice(&report[..length]);
        0
    }
}

impl NvmeNamespace for ModelController {
    fn submit(&self, command: NvmeCommand, data: &mut [u8]) -> io::Result<u16> {
        let NvmeCommand { opcode, word10, word11 } = command;
        let key = |at: usize| u64::from_le_bytes(*data[at..].first_chunk().unwrap());
        Ok(match opcode {
            0x0d => self.register(word10, key(0), key(8)),
            0x11 => self.acquire(word10, key(0), key(8)),
            0x0e => self.report(word10, word11, data),
            _ => unreachable!("another command"),
        })
    }
}

type ModelNvme = NvmeReservations<ModelController>;

impl Clone for ModelNvme {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl TestHost for ModelNvme {
    fn model(&self) -> &ModelHost {
        &self.0.disk
    }
}

fn hosts() -> [ModelHost; 2] {
    let disk = Arc::new(Mutex::new(ModelDisk::default()));
    [ModelHost(disk.clone(), 1), ModelHost(disk, 2)]
}

fn nvme_hosts(has_short_identifiers: bool) -> [ModelNvme; 2] {
    hosts().map(|disk| NvmeReservations(ModelController { disk, has_short_identifiers }))
}

fn acquire<H: TestHost>(host: &H, key: u64) -> Result<Reservation, ReservationError> {
    Reservation::acquire_on(Box::new(host.clone()), "/dev/sdx", ReservationKey(key), false)
}

fn take_over<H: TestHost>(host: &H, key: u64) -> Result<Reservation, ReservationError> {
    Reservation::acquire_on(Box::new(host.clone()), "/dev/sdx", ReservationKey(key), true)
}

/// Runs a test on a disk of SCSI, and on namespaces with both kinds of host identifiers.
macro_rules! on_each_disk {
    ($test:ident) => {
        $test(hosts());
        $test(nvme_hosts(false));
        $test(nvme_hosts(true));
    };
}

#[test]
fn a_second_host_is_refused_and_changes_nothing() {
    fn test<H: TestHost>([one, two]: [H; 2]) {
        let mut held = acquire(&one, 11).unwrap();
        assert_eq!(two.holder().unwrap(), Some(ReservationKey(11)));
        let refused = acquire(&two, 22).err().unwrap().to_string();
        assert_eq!(refused, "another host has reserved '/dev/sdx' with the key 0xb");
        assert!(one.can_write() && !two.can_write(), "it is not registered any more");
        assert!(!held.is_lost());
        drop(held);
        assert!(acquire(&two, 22).is_err() && !two.can_write(), "an orderly end gives nothing up");
    }
    on_each_disk!(test);
}

/// A host that is registered can write, if only until it is refused.
#[test]
fn a_refused_host_is_not_registered_for_a_moment() {
    fn test<H: TestHost>([one, two]: [H; 2]) {
        let _held = acquire(&one, 11).unwrap();
        assert!(acquire(&two, 22).is_err());
        assert_eq!(one.registrations(), 1, "only the owner");
    }
    on_each_disk!(test);
}

#[test]
fn a_server_that_comes_back_keeps_its_reservation_and_its_tenure() {
    fn test<H: TestHost>([one, two]: [H; 2]) {
        let tenure = |own, former: &[u64]| Some(Tenure { own, former: former.to_vec() });
        let first = acquire(&one, 11).unwrap();
        assert_eq!(first.tenure(), tenure(11, &[]));
        drop(first);
        let mut held = acquire(&one, 12).unwrap();
        assert_eq!(
            (one.holder().unwrap(), held.tenure()),
            (Some(ReservationKey(11)), tenure(11, &[]))
        );
        assert!(!held.is_lost() && acquire(&two, 22).is_err());
        let taken = take_over(&two, 23).unwrap();
        assert_eq!(taken.tenure(), tenure(23, &[11]));
        let back = take_over(&one, 13).unwrap();
        assert_eq!(
            back.tenure(),
            tenure(13, &[23]),
            "what the first has left is older than the disk"
        );
    }
    on_each_disk!(test);
}

/// A disk that does not say who has reserved it.
struct Silent(ModelHost);

impl ReservationCall for Silent {
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> device::ReservationResult {
        self.0.register(old, new)
    }

    fn reserve(&self, key: ReservationKey) -> device::ReservationResult {
        self.0.reserve(key)
    }

    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> device::ReservationResult {
        self.0.preempt(key, former)
    }

    fn holder(&self) -> device::ReservationResult<Option<ReservationKey>> {
        Err(ReservationFault::Unsupported)
    }
}

#[test]
fn a_disk_that_does_not_name_its_owner_has_no_tenure() {
    let [one, two] = hosts();
    let open = |host: &ModelHost, key| {
        let device = Box::new(Silent(host.clone()));
        Reservation::acquire_on(device, "/dev/sdx", ReservationKey(key), false)
    };
    drop(open(&one, 11).unwrap());
    assert_eq!(open(&one, 12).unwrap().tenure(), None);
    assert_eq!(one.holder().unwrap(), Some(ReservationKey(12)), "with another key");
    assert!(open(&two, 22).is_err() && !two.can_write());
}

#[test]
fn a_former_owner_learns_that_it_was_taken_over_and_leaves_the_new_one_alone() {
    fn test<H: TestHost>([one, two]: [H; 2]) {
        let mut held = acquire(&one, 11).unwrap();
        let taken = take_over(&two, 22).unwrap();
        assert!(held.is_lost() && !one.can_write() && two.can_write());
        drop(held);
        assert_eq!(two.holder().unwrap(), Some(ReservationKey(22)));
        // It cannot come back by itself either.
        assert!(acquire(&one, 13).is_err() && !one.can_write());
        drop(taken);
        assert!(acquire(&one, 14).is_err() && !one.can_write(), "the new owner has ended");
    }
    on_each_disk!(test);
}

/// Of a server that was killed while it was refused, or taken over from while it registered.
#[test]
fn a_host_whose_former_registration_is_left_registers_anew() {
    fn test<H: TestHost>([one, two]: [H; 2]) {
        let _held = acquire(&one, 11).unwrap();
        two.register(None, Some(ReservationKey(21))).unwrap();
        assert!(acquire(&two, 22).is_err() && !two.can_write(), "its registration is ended");
        two.register(None, Some(ReservationKey(23))).unwrap();
        let taken = take_over(&two, 24).unwrap();
        assert_eq!(two.holder().unwrap(), Some(ReservationKey(24)));
        drop(taken);
        assert!(!one.can_write() && two.can_write());
    }
    on_each_disk!(test);
}

#[test]
fn the_owner_is_found_among_any_number_of_registered_hosts() {
    fn test<H: TestHost>(disk: &Arc<Mutex<ModelDisk>>, host: &H) {
        let others = (100..300).map(|host| (host, ReservationKey(u64::from(host))));
        disk.lock().unwrap().registered.extend(others);
        disk.lock().unwrap().holder = Some(299);
        assert_eq!(host.holder().unwrap(), Some(ReservationKey(299)));
        assert!(host.is_registered(ReservationKey(200)).unwrap());
        assert!(!host.is_registered(ReservationKey(300)).unwrap());
        disk.lock().unwrap().holder = None;
        assert_eq!(host.holder().unwrap(), None, "registered hosts alone reserve nothing");
    }
    for has_short_identifiers in [false, true] {
        let [host, _] = nvme_hosts(has_short_identifiers);
        test(&host.0.disk.0, &host);
    }
}

#[test]
fn keys_are_random_and_of_forebay() {
    let keys: Vec<_> = (0..100).map(|_| ReservationKey::random().unwrap()).collect();
    assert!(keys.iter().all(|key| key.0 >> 48 == 0x4642));
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(keys[0].to_string().starts_with("0x4642"));
}
