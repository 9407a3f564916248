// Adds the shards of docker-compose.yml and shards shop.users on its _id. Both may be done again.
for (const shard of ["shard0", "shard1"]) {
  const added = db.adminCommand({ addShard: `${shard}/${shard}:27017` });
  if (!added.ok) throw new Error(added.errmsg);
}
const sharded = db.adminCommand({ shardCollection: "shop.users", key: { _id: "hashed" } });
if (!sharded.ok) throw new Error(sharded.errmsg);
print("shop.users is sharded over two shards");
