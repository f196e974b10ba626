//! The connections of a worker, indexed by client number.

use crate::conn::Conn;

/// The connections, and the lists of connections with work to do.
#[derive(Default)]
pub(crate) struct Connections {
    conns: Vec<Option<Box<Conn>>>,
    /// Connections with replies to send, or to close, at the end of the turn.
    pub pending: Vec<u32>,
    /// Connections whose input may continue.
    pub resumed: Vec<u32>,
}

impl Connections {
    /// Inserts a connection and returns its number.
    pub(crate) fn insert(&mut self, conn: Conn) -> u32 {
        let number = conn.client.number;
        let at = number as usize;
        if self.conns.len() <= at {
            self.conns.resize_with(at + 1, || None);
        }
        // The kernel may still use the memory of a connection that is replaced.
        assert!(self.conns[at].is_none(), "client {number} is connected already");
        self.conns[at] = Some(Box::new(conn));
        number
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Conn>> {
        self.conns.get_mut(index as usize)?.take()
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        self.conns.get(index as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Conn> {
        self.conns.get_mut(index as usize)?.as_deref_mut()
    }

    /// The numbers of all connections.
    pub(crate) fn all(&self) -> Vec<u32> {
        let numbered = self.conns.iter().enumerate();
        numbered.filter(|(_, conn)| conn.is_some()).map(|(index, _)| index as u32).collect()
    }

    /// Adds the connection to `pending`, once, and returns it.
    pub(crate) fn mark_pending(&mut self, index: u32) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(index as usize)?.as_deref_mut()?;
        if !conn.is_pending {
            conn.is_pending = true;
            self.pending.push(index);
        }
        Some(conn)
    }
}
