// Initiates a replica set of one member on each mongod of docker-compose.yml, and waits for its primary.
const ALREADY_INITIALIZED = 23;

for (const [host, options] of [
  ["config0", { _id: "config", configsvr: true }],
  ["shard0", { _id: "shard0" }],
  ["shard1", { _id: "shard1" }],
]) {
  const admin = connect(`mongodb://${host}:27017/admin?directConnection=true`);
  try {
    admin.runCommand({ replSetInitiate: { ...options, members: [{ _id: 0, host: `${host}:27017` }] } });
  } catch (error) {
    if (error.code !== ALREADY_INITIALIZED) throw error;
  }
  while (!admin.hello().isWritablePrimary) sleep(200);
  print(`${host} is primary`);
}
