use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A disk with reservations of the type that is used here, by SPC-4.
#[derive(Default)]
struct ModelDisk {
    /// The keys of hosts.
    registered: BTreeMap<u32, ReservationKey>,
    holder: Option<u32>,
}

/// The disk, as one host sees it.
#[derive(Clone)]
struct ModelHost(Rc<RefCell<ModelDisk>>, u32);

impl ModelHost {
    fn can_write(&self) -> bool {
        let disk = self.0.borrow();
        disk.holder.is_none() || disk.registered.contains_key(&self.1)
    }
}

impl ReservationCall for ModelHost {
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> device::ReservationResult {
        let mut disk = self.0.borrow_mut();
        if old.is_some() && disk.registered.get(&self.1) != old.as_ref() {
            return Err(ReservationFault::Conflict);
        }
        match new {
            Some(key) => drop(disk.registered.insert(self.1, key)),
            None => {
                disk.registered.remove(&self.1);
                disk.holder = disk.holder.filter(|holder| *holder != self.1);
            }
        }
        Ok(())
    }

    fn reserve(&self, key: ReservationKey) -> device::ReservationResult {
        let mut disk = self.0.borrow_mut();
        let is_registered = disk.registered.get(&self.1) == Some(&key);
        if !is_registered || disk.holder.is_some_and(|holder| holder != self.1) {
            return Err(ReservationFault::Conflict);
        }
        disk.holder = Some(self.1);
        Ok(())
    }

    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> device::ReservationResult {
        let mut disk = self.0.borrow_mut();
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
        let disk = self.0.borrow();
        Ok(disk.holder.and_then(|holder| disk.registered.get(&holder).copied()))
    }
}

fn hosts() -> [ModelHost; 2] {
    let disk = Rc::new(RefCell::new(ModelDisk::default()));
    [ModelHost(disk.clone(), 1), ModelHost(disk, 2)]
}

fn acquire(host: &ModelHost, key: u64) -> Result<Reservation<ModelHost>, ReservationError> {
    Reservation::acquire_on(host.clone(), "/dev/sdx", ReservationKey(key), false)
}

#[test]
fn a_second_host_is_refused_and_changes_nothing() {
    let [one, two] = hosts();
    let mut held = acquire(&one, 11).unwrap();
    assert_eq!(two.holder().unwrap(), Some(ReservationKey(11)));
    let refused = acquire(&two, 22).err().unwrap().to_string();
    assert_eq!(refused, "another host has reserved '/dev/sdx' with the key 0xb");
    assert!(one.can_write() && !two.can_write(), "it is not registered any more");
    assert!(!held.is_lost());
    drop(held);
    assert!(acquire(&two, 22).is_err() && !two.can_write(), "an orderly end gives nothing up");
}

#[test]
fn a_server_that_comes_back_keeps_its_reservation_and_its_tenure() {
    let [one, two] = hosts();
    let tenure = |own, former: &[u64]| Some(Tenure { own, former: former.to_vec() });
    let first = acquire(&one, 11).unwrap();
    assert_eq!(first.tenure(), tenure(11, &[]));
    drop(first);
    let mut held = acquire(&one, 12).unwrap();
    assert_eq!((one.holder().unwrap(), held.tenure()), (Some(ReservationKey(11)), tenure(11, &[])));
    assert!(!held.is_lost() && acquire(&two, 22).is_err());
    let taken = Reservation::acquire_on(two, "/dev/sdx", ReservationKey(23), true).unwrap();
    assert_eq!(taken.tenure(), tenure(23, &[11]));
    let back = Reservation::acquire_on(one, "/dev/sdx", ReservationKey(13), true).unwrap();
    assert_eq!(back.tenure(), tenure(13, &[23]), "what the first has left is older than the disk");
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
        Reservation::acquire_on(Silent(host.clone()), "/dev/sdx", ReservationKey(key), false)
    };
    drop(open(&one, 11).unwrap());
    assert_eq!(open(&one, 12).unwrap().tenure(), None);
    assert_eq!(one.holder().unwrap(), Some(ReservationKey(12)), "with another key");
    assert!(open(&two, 22).is_err() && !two.can_write());
}

#[test]
fn a_former_owner_learns_that_it_was_taken_over_and_leaves_the_new_one_alone() {
    let [one, two] = hosts();
    let mut held = acquire(&one, 11).unwrap();
    let taken = Reservation::acquire_on(two.clone(), "/dev/sdx", ReservationKey(22), true).unwrap();
    assert!(held.is_lost() && !one.can_write() && two.can_write());
    drop(held);
    assert_eq!(two.holder().unwrap(), Some(ReservationKey(22)));
    // It cannot come back by itself either.
    assert!(acquire(&one, 13).is_err() && !one.can_write());
    drop(taken);
    assert!(acquire(&one, 14).is_err() && !one.can_write(), "the new owner has ended");
}

#[test]
fn keys_are_random_and_of_forebay() {
    let keys: Vec<_> = (0..100).map(|_| ReservationKey::random().unwrap()).collect();
    assert!(keys.iter().all(|key| key.0 >> 48 == 0x4642));
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(keys[0].to_string().starts_with("0x4642"));
}
