// A js-libp2p peer: connects to ADDRESS, identifies and pings its peer, and listens to TOPICs.
// Writes one JSON object a line; it ends when its input ends.
//
//   node peer.mjs MODULES ADDRESS TOPIC...      MODULES: where the packages are installed
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

// The packages use it; Node has it from version 22 on.
Promise.withResolvers ??= () => {
  const all = {}
  all.promise = new Promise((resolve, reject) => Object.assign(all, { resolve, reject }))
  return all
}

const [modules, address, ...topics] = process.argv.slice(2)
const { resolve } = createRequire(pathToFileURL(`${modules}/`))
const load = (name) => import(resolve(name))

const { createLibp2p } = await load('libp2p')
const { tcp } = await load('@libp2p/tcp')
const { noise } = await load('@libp2p/noise')
const { yamux } = await load('@libp2p/yamux')
const { identify } = await load('@libp2p/identify')
const { ping } = await load('@libp2p/ping')
const { gossipsub } = await load('@libp2p/gossipsub')
const { multiaddr } = await load('@multiformats/multiaddr')

const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')

const node = await createLibp2p({
  addresses: { listen: [] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), ping: ping(), gossip: gossipsub() }
})
node.addEventListener('peer:identify', ({ detail }) => {
  say({
    event: 'identified',
    peer: detail.peerId.toString(),
    agent: detail.agentVersion,
    protocols: detail.protocols,
    listening: detail.listenAddrs.map(String),
    observed: String(detail.observedAddr)
  })
})
node.addEventListener('peer:disconnect', ({ detail }) => say({ event: 'disconnected', peer: detail.toString() }))
node.services.gossip.addEventListener('message', ({ detail }) => {
  say({ event: 'message', topic: detail.topic, author: detail.from.toString(), bytes: detail.data.length })
})
for (const topic of topics) node.services.gossip.subscribe(topic)
await node.start()
say({ event: 'started', peer: node.peerId.toString() })
const remote = multiaddr(address)
const connection = await node.dial(remote)
say({ event: 'connected', peer: connection.remotePeer.toString(), muxer: connection.multiplexer, encryption: connection.encryption })
for (let number = 0; number < 3; number++) {
  say({ event: 'pinged', milliseconds: await node.services.ping.ping(remote) })
}
process.stdin.resume()
process.stdin.on('end', async () => { await node.stop(); process.exit(0) })
